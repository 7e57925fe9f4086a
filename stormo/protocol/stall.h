#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>

namespace stormo::protocol {

/// A stall: some rank waits in an operation, and others that the operation needs neither come nor
/// do anything else that could be seen. As long as nobody waits for it, a rank may compute for as
/// long as it likes.
struct StallLimits {
  Duration warning = std::chrono::seconds(10);  ///< zero: never warns
  Duration timeout = std::chrono::seconds(60);  ///< zero: never ends the job
};

/// How long a rank may wait; Duration::max() is for ever.
struct StallBounds {
  Duration warn_after;
  Duration end_after;
};

/// A warning comes after `limits.warning` or 5 times the slowest step, the end `limits.timeout`
/// beyond the slowest step, and never before the warning. Before the first step is over
/// (`started`), both take 5 times as long: programs load data and compile.
StallBounds stall_bounds(const StallLimits& limits, bool started, Duration slowest_step);

/// A rank's state in one group.
struct GroupReport {
  std::string group;        ///< name; empty for the world
  Rank rank = 0;            ///< its number in the group
  std::uint64_t place = 0;  ///< collectives begun
  std::string operation;    ///< the last one begun: "all_reduce #39 (sum of 10 float32)"
  bool running = false;     ///< it has not ended
  bool is_message = false;  ///< send or receive
  Rank peer = 0;            ///< of a message
};

/// What a rank says when it is asked, or what is known when it does not answer.
struct RankReport {
  Rank rank = 0;
  std::string identity;  ///< "rank 1 (host a, pid 4711)"
  bool answered = false;
  std::string doing;   ///< "step 12 forward, computing after all_reduce #39 (...)"
  Duration idle{};     ///< since it last began or ended an operation or named a section
  std::string seen{};  ///< of one that does not answer: "its process is stopped"
  std::vector<GroupReport> groups{};
};

/// The operation that a rank waits in, as a GroupReport of its own.
struct StallWait {
  GroupReport in;
  Duration waited{};
};

struct Stall {
  /// For how long nobody that the operation needs has moved; less than `waited` when somebody has.
  Duration age{};
  std::vector<Rank> missing;  ///< have not reached the operation; the cause is among them
  std::vector<Rank> waiting;  ///< are in it
  std::vector<Rank> silent;   ///< do not answer
  /// "rank 1 (host a, pid 4711) has not reached all_reduce #40 (...) for 10 s; ranks 0, 2 wait in
  /// it; rank 1's last: step 12 forward, ...".
  std::string text;
};

/// Who is missing where. `ranks` are all of the job, in order.
Stall find_stall(const StallWait& wait, std::span<const RankReport> ranks);

}  // namespace stormo::protocol
