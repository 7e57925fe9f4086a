#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::protocol {

/// Who was lost, and how often: members that come and go wait longer each time.
class LossHistory {
 public:
  struct Limits {
    Duration window = std::chrono::minutes(10);
    int free_losses = 2;  ///< within the window: after these it may come back at once
    Duration shortest = std::chrono::seconds(1);  ///< doubled with each further one
    Duration longest = std::chrono::seconds(60);
  };
  explicit LossHistory(Limits limits) : limits_(limits) {}

  void note(std::string_view identity, TimePoint now);
  /// When it may come back. Of one that need not wait a time that has passed.
  TimePoint returns_at(std::string_view identity, TimePoint now) const;
  bool may_return(std::string_view identity, TimePoint now) const {
    return now >= returns_at(identity, now);
  }

 private:
  struct Loss {
    std::string identity;
    TimePoint at;
  };
  Limits limits_;
  std::vector<Loss> losses_;  // in order of time
};

}  // namespace stormo::protocol
