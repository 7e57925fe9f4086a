#pragma once

#include <algorithm>
#include <string_view>

namespace stormo::observe {

/// The value of a header, without the blanks around it.
inline std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

}  // namespace stormo::observe
