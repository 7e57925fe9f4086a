#pragma once

#include <string_view>

#include <stormo/base/status.h>

namespace stormo::train {

/// Dotted parts of one key, and lists and tables around a value, at most. The TOML library limits
/// only the latter, and walks through tables by recursion.
inline constexpr int kMaxTomlDepth = 32;

/// kInvalidArgument begins with the line of a key of more parts, or of a value inside of more lists
/// and tables: "7: a key of more than 32 parts". Whether `text` is TOML is not looked at. Linear.
Status check_toml_depth(std::string_view text);

}  // namespace stormo::train
