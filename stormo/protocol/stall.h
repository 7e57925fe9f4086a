#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>

namespace stormo::protocol {

/// Limits for stalls. A stall: some rank waits in an operation, and other ranks of the operation
/// neither call it nor make any other visible progress. If no rank waits for it, a rank may compute
/// for any time.
struct StallLimits {
  Duration warning = std::chrono::seconds(10);  ///< zero: never warns
  Duration timeout = std::chrono::seconds(60);  ///< zero: never ends the job
};

/// How long a rank may wait; Duration::max(): without limit.
struct StallBounds {
  Duration warn_after;
  Duration end_after;
};

/// The warning comes after `limits.warning` or 5 times the slowest step, whichever is longer. The
/// job ends `limits.timeout` plus the slowest step after the start of the wait, but never before
/// the warning. Until the first step is over (`started`), both times are 5 times as long, because
/// programs load data and compile.
StallBounds stall_bounds(const StallLimits& limits, bool started, Duration slowest_step);

/// The peer of a receive from any rank.
inline constexpr Rank kAnyPeer = -1;

/// A rank's state in one group.
struct GroupReport {
  std::string group;        ///< name; empty for the world
  Rank rank = 0;            ///< its number in the group
  int size = 0;             ///< ranks of the group; 0: not known
  std::uint64_t place = 0;  ///< collectives begun
  std::string operation;    ///< the last one begun: "all_reduce #39 (sum of 10 float32)"
  bool running = false;     ///< it has not ended
  bool is_message = false;  ///< send or receive
  Rank peer = 0;            ///< of a message; kAnyPeer: whoever sends first
};

/// The answer of a rank about its state, or what is known about a rank that does not answer.
struct RankReport {
  Rank rank = 0;
  std::string identity;  ///< "rank 1 (host a, pid 4711)"
  bool answered = false;
  std::string doing;   ///< "step 12 forward, computing after all_reduce #39 (...)"
  Duration idle{};     ///< since its last progress: an operation, a message or a section
  std::string seen{};  ///< of a rank that does not answer: "its process is stopped"
  std::vector<GroupReport> groups{};
};

/// The operation in which a rank waits.
struct StallWait {
  GroupReport in;
  Duration waited{};
};

struct Stall {
  /// For how long no missing rank has made progress; less than `waited` if one has.
  Duration age{};
  std::vector<Rank>
      missing;  ///< ranks that have not reached the operation; the cause is among them
  std::vector<Rank> waiting;  ///< ranks that are in it
  std::vector<Rank> silent;   ///< ranks that do not answer, and may be in the group
  /// "rank 1 (host a, pid 4711) has not reached all_reduce #40 (...) for 10 s; ranks 0, 2 wait in
  /// it; rank 1's last: step 12 forward, ...".
  std::string text;
};

/// Finds the ranks that are missing. `ranks`: all ranks of the job, in order.
Stall find_stall(const StallWait& wait, std::span<const RankReport> ranks);

}  // namespace stormo::protocol
