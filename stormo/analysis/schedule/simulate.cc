#include <stormo/analysis/schedule/simulate.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace stormo::analysis {
namespace {

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
  Run(const Messages& messages, const plan::Topology& topology, std::int64_t bytes)
      : messages_(messages),
        topology_(topology),
        sizes_(messages.chunks, bytes),
        ranks_(messages.host_of.size()),
        hosts_(static_cast<std::size_t>(messages.host_of.back()) + 1) {}

  struct Interval {
    Seconds start, end;
  };
  /// Plays the rounds and calls done(round, message, interval).
  template <class F>
  void play(F&& done) {
    for (std::size_t i = 0; i < messages_.rounds.size(); ++i) {
      for (const Message& m : messages_.rounds[i]) {
        done(static_cast<int>(i), m, play(static_cast<int>(i), m));
      }
    }
  }

  std::vector<Duration> finish() const {
    std::vector<Duration> out;
    out.reserve(ranks_.size());
    for (const RankState& rank : ranks_) out.push_back(to_duration(rank.finish));
    return out;
  }

 private:
  RankState& enter(Rank r, int round) {
    RankState& state = ranks_[static_cast<std::size_t>(r)];
    if (state.round != round) {
      state.round = round;
      state.ready = state.finish;
      state.sends_to = -1;
    }
    return state;
  }

  Interval play(int round, const Message& m) {
    RankState& from = enter(m.from, round);
    RankState& to = enter(m.to, round);
    const int from_host = messages_.host_of[m.from], to_host = messages_.host_of[m.to];
    const plan::Link& link = from_host == to_host ? topology_.intra : topology_.inter;
    const bool goes_on = std::exchange(from.sends_to, m.to) == m.to;
    const Seconds latency = goes_on ? 0 : link.latency_s;
    const auto size = static_cast<double>(sizes_.of(m));
    const Seconds passing = size * link.seconds_per_byte;
    Seconds start = std::max(std::max(from.ready, to.ready), std::max(from.out.free, to.in.free));
    if (from_host != to_host) {
      HostState& out = hosts_[static_cast<std::size_t>(from_host)];
      HostState& in = hosts_[static_cast<std::size_t>(to_host)];
      start = std::max(start, std::max(out.out.free, in.in.free));
      out.out.free = in.in.free = start + passing;
    }
    const Seconds received = start + latency + passing;
    from.out.free = to.in.free = received;
    Seconds end = received;
    if (m.how == plan::ReceiveOp::kReduce) {
      // chunk by chunk: the core is behind from the first one on, or waits for the last one
      const Seconds first =
          start + latency + static_cast<double>(sizes_.of(m.chunk)) * link.seconds_per_byte;
      const Seconds gamma = topology_.reduce_seconds_per_byte;
      end = std::max(std::max(first, to.core.free) + size * gamma,
                     received + static_cast<double>(sizes_.of(m.last_chunk())) * gamma);
      to.core.free = end;
    }
    from.finish = std::max(from.finish, received);
    to.finish = std::max(to.finish, end);
    return {start, end};
  }

  const Messages& messages_;
  const plan::Topology& topology_;
  ChunkSizes sizes_;
  std::vector<RankState> ranks_;
  std::vector<HostState> hosts_;
};

}  // namespace

Simulation simulate(const plan::Schedule& s, const plan::Topology& topology, std::int64_t bytes,
                    ManualClock& clock, Timeline timeline) {
  const TimePoint begin = clock.now();
  const bool keep = timeline == Timeline::kKeep;
  const Messages messages = messages_of(s, topology, keep ? Joining::kNone : Joining::kInsideHosts);
  Simulation out;
  Run run(messages, topology, bytes);
  run.play([&](int round, const Message& m, Run::Interval when) {
    if (!keep) return;
    out.timeline.push_back({round,
                            {m.from, m.to, m.chunk, m.how},
                            plan::chunk_extent(m.chunk, s.chunks, bytes).size(),
                            begin + to_duration(when.start),
                            begin + to_duration(when.end)});
  });
  out.finish = run.finish();
  out.duration = std::ranges::max(out.finish);
  clock.advance(out.duration);
  return out;
}

Duration duration_of(const Messages& messages, const plan::Topology& topology, std::int64_t bytes) {
  Run run(messages, topology, bytes);
  run.play([](int, const Message&, Run::Interval) {});
  return std::ranges::max(run.finish());
}

}  // namespace stormo::analysis
