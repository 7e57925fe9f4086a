#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// An algorithm, by the name of its builder, and how finely it cuts its data.
struct Choice {
  std::string_view builder;
  int pieces = 1;
  auto operator<=>(const Choice&) const = default;
};

/// The algorithm for a goal on this machine and these hosts, for a buffer of `bytes` bytes: the
/// whole, as analysis::cost counts it. A pure function, equal on all ranks. O(1) but for the number
/// of hosts.
Choice choose(plan::GoalKind goal, const std::vector<int>& ranks_per_host, std::uint64_t bytes);

/// The schedule that a choice stands for; kInvalidArgument when it does not suit the hosts, or
/// would be too large.
Result<plan::Schedule> build(const Choice& choice, const plan::Goal& goal,
                             const std::vector<int>& ranks_per_host);

}  // namespace stormo::comm
