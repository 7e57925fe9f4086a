#pragma once

#include <string_view>
#include <vector>

namespace stormo::bench {

/// The lines of `text` that are not empty, each without a launcher's "[rank] " before JSON.
std::vector<std::string_view> record_lines(std::string_view text);

}  // namespace stormo::bench
