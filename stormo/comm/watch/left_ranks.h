#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/comm/watch/activity.h>

namespace stormo::comm {

/// A rank that has left a group in order.
struct LeftRank {
  Rank rank = 0;                  ///< in the job
  Rank in_group = 0;              ///< its number in the group
  std::uint64_t collectives = 0;  ///< that it had begun there
  bool operator==(const LeftRank&) const = default;
};
/// Its line in the list that the Store has of a group.
std::string to_line(const LeftRank& left);
/// Each rank once.
std::vector<LeftRank> parse_left_ranks(std::string_view lines);

/// The ranks of the job that have left without their part in the operation, if it cannot end
/// without them; in order.
std::vector<Rank> needed_of(std::span<const LeftRank> left, const Activities::Call& call);
/// "rank 1 has left in order", "ranks 1, 2 have left in order".
std::string have_left(std::span<const Rank> ranks);

/// Calls that do not end, by the heartbeats of the rank. A pure state machine.
class RunningCalls {
 public:
  /// The calls that should have ended: to be called with every beat. A collective is one at its
  /// second beat. A message is one when no bytes have moved for some beats, because what its sender
  /// had sent before it left may still be on its way; and after some 10 s in any case, because the
  /// bytes may be others'. `bytes_moved`: so far, by this process.
  std::vector<Activities::Call> at_beat(std::vector<Activities::Call> calls,
                                        std::uint64_t bytes_moved);
  static constexpr int kQuietBeats = 4;
  static constexpr int kMaxBeats = 40;

 private:
  struct Running {
    Activities::Call call;
    int beats = 0;  // after the first one
    int quiet = 0;  // of these, the last ones at which nothing had moved
  };
  std::vector<Running> running_;  // at the last beat
  std::uint64_t bytes_moved_ = 0;
};

/// A key of the Store for a group, whose name may be of any length.
std::string key_of_group(std::string_view what, std::string_view group);

}  // namespace stormo::comm
