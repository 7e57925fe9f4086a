#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include <stormo/base/status.h>

namespace stormo::plan {

/// Texts, numbers and what has a to_string(), one after the other.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::string out;
  const auto add = [&out](const auto& part) {
    using Each = std::decay_t<decltype(part)>;
    if constexpr (std::is_arithmetic_v<Each>) {
      out += std::to_string(part);
    } else if constexpr (std::is_enum_v<Each>) {
      out += to_string(part);
    } else {
      out += part;
    }
  };
  (add(parts), ...);
  return out;
}

/// The answer to a plan that must not run, for the reason that the parts give together.
template <class... Parts>
Status bad(const Parts&... parts) {
  return Status(Code::kBadPlan, text_of(parts...));
}

}  // namespace stormo::plan
