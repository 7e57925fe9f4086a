#pragma once

#include <string>

#include <stormo/base/status.h>

namespace stormo::train {

/// The topology that strategy.topology names: of "file:PATH" what the file says, as
/// plan::topology_of_text() writes it; others are returned as they are. kInvalidArgument with the
/// path.
Result<std::string> read_topology(const std::string& topology);

}  // namespace stormo::train
