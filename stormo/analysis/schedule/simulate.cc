#include <stormo/analysis/schedule/simulate.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <stormo/base/check.h>

namespace stormo::analysis {
namespace {

using plan::Transfer;
using Seconds = double;

Duration to_duration(Seconds s) { return Duration(std::llround(s * 1e9)); }

/// A thing that does one job at a time.
struct Resource {
  Seconds free = 0;
};

struct RankState {
  Seconds ready = 0;   // when it may start its present round
  Seconds finish = 0;  // when all it has started is done
  int round = -1;      // its present round
  Rank sends_to = -1;  // whom it sent to last in this round
  Resource out, in, core;
};

struct HostState {
  Resource out, in;
};

class Run {
 public:
  Run(const plan::Schedule& s, const plan::Topology& topology, std::int64_t bytes)
      : schedule_(s),
        topology_(topology),
        bytes_(bytes),
        host_of_(topology.host_of_ranks()),
        ranks_(static_cast<std::size_t>(s.ranks)),
        hosts_(static_cast<std::size_t>(topology.hosts())) {}

  /// Plays the rounds and calls done(round, transfer, bytes, start, end).
  template <class F>
  void play(F&& done) {
    for (std::size_t i = 0; i < schedule_.rounds.size(); ++i) {
      for (const Transfer& t : nearest_first(schedule_.rounds[i])) {
        const std::int64_t size = plan::chunk_extent(t.chunk, schedule_.chunks, bytes_).size();
        const auto [start, end] = play(static_cast<int>(i), t, static_cast<double>(size));
        done(static_cast<int>(i), t, size, start, end);
      }
    }
  }

  const std::vector<RankState>& ranks() const { return ranks_; }

 private:
  struct Interval {
    Seconds start, end;
  };

  RankState& enter(Rank r, int round) {
    RankState& state = ranks_[static_cast<std::size_t>(r)];
    if (state.round != round) {
      state.round = round;
      state.ready = state.finish;
      state.sends_to = -1;
    }
    return state;
  }

  Interval play(int round, const Transfer& t, double size) {
    RankState& from = enter(t.from, round);
    RankState& to = enter(t.to, round);
    const int from_host = host_of_[static_cast<std::size_t>(t.from)];
    const int to_host = host_of_[static_cast<std::size_t>(t.to)];
    const plan::Link& link = from_host == to_host ? topology_.intra : topology_.inter;
    const bool goes_on = std::exchange(from.sends_to, t.to) == t.to;
    const Seconds latency = goes_on ? 0 : link.latency_s;
    const Seconds passing = size * link.seconds_per_byte;
    Seconds start = std::max({from.ready, to.ready, from.out.free, to.in.free});
    if (from_host != to_host) {
      HostState& out = hosts_[static_cast<std::size_t>(from_host)];
      HostState& in = hosts_[static_cast<std::size_t>(to_host)];
      start = std::max({start, out.out.free, in.in.free});
      out.out.free = in.in.free = start + passing;
    }
    const Seconds received = start + latency + passing;
    from.out.free = to.in.free = received;
    Seconds end = received;
    if (t.how == plan::Combine::kReduce) {
      end = std::max(received, to.core.free) + size * topology_.reduce_seconds_per_byte;
      to.core.free = end;
    }
    from.finish = std::max(from.finish, received);
    to.finish = std::max(to.finish, end);
    return {start, end};
  }

  /// The transfers of a round by the distance from sender to receiver. Ranks that all served rank 0
  /// first would queue there while the other ports idle.
  std::span<const Transfer> nearest_first(const plan::Round& round) {
    const auto distance = [&](const Transfer& t) {
      return static_cast<std::size_t>((t.to - t.from + schedule_.ranks) % schedule_.ranks);
    };
    const auto farther = [&](const Transfer& a, const Transfer& b) {
      return distance(a) < distance(b);
    };
    if (std::ranges::is_sorted(round, farther)) return round;
    begin_.assign(static_cast<std::size_t>(schedule_.ranks) + 1, 0);
    for (const Transfer& t : round) ++begin_[distance(t) + 1];
    for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    sorted_.resize(round.size());
    for (const Transfer& t : round) sorted_[begin_[distance(t)]++] = t;
    return sorted_;
  }

  const plan::Schedule& schedule_;
  const plan::Topology& topology_;
  std::int64_t bytes_;
  std::vector<int> host_of_;
  std::vector<RankState> ranks_;
  std::vector<HostState> hosts_;
  std::vector<std::size_t> begin_;
  std::vector<Transfer> sorted_;
};

}  // namespace

Simulation simulate(const plan::Schedule& s, const plan::Topology& topology, std::int64_t bytes,
                    ManualClock& clock, Timeline timeline) {
  STORMO_CHECK(topology.ranks() == s.ranks, "simulate: the topology has another number of ranks");
  Simulation out;
  const TimePoint begin = clock.now();
  Run run(s, topology, bytes);
  run.play([&](int round, const Transfer& t, std::int64_t size, Seconds start, Seconds end) {
    if (timeline == Timeline::kDrop) return;
    out.timeline.push_back({round, t, size, begin + to_duration(start), begin + to_duration(end)});
  });
  for (const RankState& rank : run.ranks()) {
    out.finish.push_back(to_duration(rank.finish));
    out.duration = std::max(out.duration, out.finish.back());
  }
  clock.advance(out.duration);
  return out;
}

}  // namespace stormo::analysis
