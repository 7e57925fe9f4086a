#pragma once

#include <cstdint>
#include <vector>

#include <stormo/analysis/schedule/messages.h>
#include <stormo/base/clock.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/topology.h>

namespace stormo::analysis {

/// One transfer of a simulated run, from the first byte sent until it is received and reduced.
struct SimulatedTransfer {
  int round = 0;
  plan::Transfer transfer;
  std::int64_t bytes = 0;
  TimePoint start;
  TimePoint end;
};

struct Simulation {
  Duration duration{};                      ///< until the last rank is done
  std::vector<Duration> finish;             ///< by rank, since the start
  std::vector<SimulatedTransfer> timeline;  ///< in the order of rounds; empty for Timeline::kDrop
};

enum class Timeline : std::uint8_t { kKeep, kDrop };

/// Simulates `s` with a buffer of `bytes` bytes in virtual time, starting at clock.now(). Moves the
/// clock to the end, so that several collectives can be simulated one after the other.
/// Deterministic.
///
/// The model follows LogGP: every rank executes its rounds in order and finishes each before it
/// starts the next. A transfer takes latency + bytes * seconds_per_byte and keeps the sender's
/// outgoing and the receiver's incoming port busy for that long; between hosts it also keeps both
/// hosts' interfaces busy while its bytes pass. Consecutive transfers of a round from one rank to
/// the same receiver are one message, with one latency. Afterwards a reduction keeps the receiver's
/// core busy. Within a round each rank first sends to its nearest neighbours to the right. Topology
/// and schedule must have the same ranks. O(transfers + rounds).
Simulation simulate(const plan::Schedule& s, const plan::Topology& topology, std::int64_t bytes,
                    ManualClock& clock, Timeline timeline = Timeline::kKeep);

/// Until the last rank is done, for a schedule that is played with many sizes. Of `topology` the
/// links count.
Duration duration_of(const Messages& messages, const plan::Topology& topology, std::int64_t bytes);

}  // namespace stormo::analysis
