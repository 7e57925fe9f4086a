#pragma once

#include <string_view>

#include <stormo/plan/mixing/mixing.h>

namespace stormo::plan {

/// Whether it is "edges:..." or "weights:...". Internal to plan/mixing.
bool is_given(std::string_view topology);
/// What such a text says. kInvalidArgument where it cannot be read, or has other ranks; not checked
/// otherwise.
Result<Mixing> given_mixing(std::string_view topology, int ranks);

}  // namespace stormo::plan
