#pragma once

#include <chrono>

namespace stormo::launch {

/// How many of the processors on which this process may run were kept busy by others since this
/// object was made: others than this process and its children that have been waited for.
class OtherLoad {
 public:
  OtherLoad();
  double cores() const;

 private:
  double busy_;  // seconds
  double own_;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace stormo::launch
