#pragma once

#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo {

/// What must hold: `Requirements require; require(a > 0, "a must be positive"); ...`. What does not
/// hold is listed in one text.
class Requirements {
 public:
  explicit Requirements(std::string_view between = "; ") : between_(between) {}

  void operator()(bool holds, std::string_view otherwise) {
    if (holds) return;
    if (!wrong_.empty()) wrong_ += between_;
    wrong_ += otherwise;
  }
  /// Empty: all holds.
  const std::string& wrong() const { return wrong_; }
  /// kInvalidArgument with what is wrong.
  Status status() const { return wrong_.empty() ? Status() : invalid_argument(wrong_); }

 private:
  std::string_view between_;
  std::string wrong_;
};

}  // namespace stormo
