// Compiled programs of all ranks, interleaved at random on a memory model, must reach the goal.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include <stormo/base/rng.h>
#include <stormo/comm/program.h>
#include <stormo/comm/select.h>
#include <stormo/schedule/binomial.h>
#include <stormo/schedule/direct.h>
#include <stormo/schedule/hierarchical.h>
#include <stormo/schedule/ring.h>
#include <stormo/schedule/star.h>

namespace stormo::comm {
namespace {

using plan::Schedule;

/// One number per rank and chunk; ranks advance one step at a time in random order.
class Machine {
 public:
  Machine(const Schedule& schedule, const std::vector<int>& hosts, std::uint64_t seed)
      : map_(HostMap::of(hosts)), rng_(seed, "compile_test") {
    const auto n = static_cast<std::size_t>(schedule.ranks);
    for (std::size_t r = 0; r < n; ++r) {
      programs_.push_back(compile(schedule, static_cast<Rank>(r), map_));
      memory_.emplace_back(schedule.chunks);
      for (int c = 0; c < schedule.chunks; ++c)
        memory_[r][static_cast<std::size_t>(c)] = input(r, c);
    }
    next_.assign(n, 0);
    meetings_.assign(n, 0);
    sent_.assign(n, false);
  }
  static double input(std::size_t rank, int chunk) {
    return static_cast<double>((rank + 1) * 1000 + static_cast<std::size_t>(chunk));
  }
  static double scale(std::size_t rank) { return static_cast<double>(rank % 3) + 1; }

  /// False when no rank can go on before all are done.
  bool run() {
    const std::size_t n = programs_.size();
    std::size_t stuck = 0;
    while (!done()) {
      const auto r = static_cast<std::size_t>(rng_.below(n));
      stuck = advance(r) ? 0 : stuck + 1;
      if (stuck > 1000 * n) return false;
    }
    return true;
  }
  double at(std::size_t rank, int chunk) const {
    return memory_[rank][static_cast<std::size_t>(chunk)];
  }
  const Program& program(std::size_t rank) const { return programs_[rank]; }

 private:
  bool done() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < programs_[r].steps.size()) return false;
    }
    return true;
  }
  std::size_t neighbour(std::size_t rank, int local) const {
    return static_cast<std::size_t>(
        map_.ranks_of(map_.host[rank])[static_cast<std::size_t>(local)]);
  }

  bool advance(std::size_t r) {
    if (next_[r] == programs_[r].steps.size()) return false;
    const Step& s = programs_[r].steps[next_[r]];
    const auto c = static_cast<std::size_t>(s.chunk);
    switch (s.kind) {
      case Step::Kind::kSync: {
        if (!arrived_[r]) {
          arrived_[r] = true;
          ++meetings_[r];
        }
        for (const Rank p : map_.ranks_of(map_.host[r])) {
          if (meetings_[static_cast<std::size_t>(p)] < meetings_[r]) return false;
        }
        arrived_[r] = false;
        break;
      }
      case Step::Kind::kReduce: {
        double sum = 0;
        for (std::size_t i = 0; i < s.sources.size(); ++i) {
          const std::size_t p = neighbour(r, s.sources[i]);
          sum += memory_[p][c] * (s.raw[i] ? scale(p) : 1);
        }
        for (const int d : s.destinations) memory_[neighbour(r, d)][c] = sum;
        break;
      }
      case Step::Kind::kPull: memory_[r][c] = memory_[neighbour(r, s.sources[0])][c]; break;
      case Step::Kind::kScale: memory_[r][c] *= scale(r); break;
      case Step::Kind::kExchange:
        if (!exchange(r, s)) return false;
        break;
    }
    ++next_[r];
    return true;
  }

  bool exchange(std::size_t r, const Step& s) {
    if (!sent_[r]) {
      for (const WireMove& m : s.sends) {
        wire_[{static_cast<Rank>(r), m.peer}].push_back(
            memory_[r][static_cast<std::size_t>(m.chunk)]);
      }
      sent_[r] = true;
    }
    std::map<Rank, std::size_t> needed;
    for (const WireMove& m : s.receives) ++needed[m.peer];
    for (const auto& [peer, count] : needed) {
      if (wire_[{peer, static_cast<Rank>(r)}].size() < count) return false;
    }
    for (const WireMove& m : s.receives) {
      auto& queue = wire_[{m.peer, static_cast<Rank>(r)}];
      double& mine = memory_[r][static_cast<std::size_t>(m.chunk)];
      mine = m.how == plan::Combine::kReduce ? mine + queue.front() : queue.front();
      queue.pop_front();
    }
    sent_[r] = false;
    return true;
  }

  HostMap map_;
  Rng rng_;
  std::vector<Program> programs_;
  std::vector<std::vector<double>> memory_;
  std::vector<std::size_t> next_;
  std::vector<int> meetings_;
  std::vector<bool> sent_;
  std::map<std::size_t, bool> arrived_;
  std::map<std::pair<Rank, Rank>, std::deque<double>> wire_;
};

const std::vector<std::vector<int>> kHosts = {{1},    {2},       {3},       {5},          {1, 1},
                                              {2, 2}, {3, 3, 3}, {1, 2, 3}, {2, 2, 2, 2}, {4, 1}};

double reduced(int ranks, int chunk) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    sum += Machine::input(rank, chunk) * Machine::scale(rank);
  }
  return sum;
}

double wanted(const Schedule& s, int rank, int chunk) {
  if (const auto source = only_source(s, chunk)) {
    return Machine::input(static_cast<std::size_t>(*source), chunk);
  }
  return reduced(s.goal.kind == plan::GoalKind::kScan ? rank + 1 : s.ranks, chunk);
}

void expect_goal(const Schedule& s, const std::vector<int>& hosts) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Machine machine(s, hosts, seed);
    ASSERT_TRUE(machine.run()) << s.name << ": no rank can go on";
    for (int r = 0; r < s.ranks; ++r) {
      for (int c = 0; c < s.chunks; ++c) {
        const auto target = only_target(s, c);
        if ((target && *target != r) || s.ranks == 1) continue;
        ASSERT_EQ(machine.at(static_cast<std::size_t>(r), c), wanted(s, r, c))
            << s.name << " rank " << r << " chunk " << c;
      }
    }
  }
}

TEST(Compile, EveryScheduleReachesItsGoalOnEveryPlacement) {
  for (const auto& hosts : kHosts) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    for (const Schedule& s : {schedule::ring_all_reduce(n), schedule::ring_reduce_scatter(n),
                              schedule::ring_all_gather(n), schedule::star_all_reduce(n),
                              schedule::direct_all_reduce(n), schedule::direct_reduce_scatter(n),
                              schedule::direct_all_gather(n), schedule::binomial_broadcast(n, 0),
                              schedule::binomial_broadcast(n, n - 1)}) {
      expect_goal(s, hosts);
    }
    const int h = static_cast<int>(hosts.size());
    if (n % h == 0) expect_goal(schedule::hierarchical_all_reduce(h, n / h), hosts);
    for (const auto kind : {plan::GoalKind::kAllReduce, plan::GoalKind::kReduceScatter,
                            plan::GoalKind::kAllGather, plan::GoalKind::kBroadcast}) {
      expect_goal(select({kind, 0}, hosts), hosts);
    }
  }
}

TEST(Compile, DirectAllReduceOnOneHostIsOnePassAndOneMeeting) {
  const Program p = compile(schedule::direct_all_reduce(4), 1, HostMap::of({4}));
  ASSERT_EQ(p.steps.size(), 2u);
  EXPECT_EQ(p.steps[0].kind, Step::Kind::kReduce);
  EXPECT_EQ(p.steps[0].chunk, 1);
  EXPECT_EQ(p.steps[0].sources, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(p.steps[0].destinations, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(p.steps[1].kind, Step::Kind::kSync);
}

TEST(Compile, RanksOfAHostMeetEquallyOften) {
  for (const auto& hosts : kHosts) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    const HostMap map = HostMap::of(hosts);
    for (const Schedule& s : {schedule::ring_all_reduce(n), schedule::binomial_broadcast(n, 0)}) {
      std::map<int, std::size_t> meetings;
      for (Rank r = 0; r < n; ++r) {
        const Program p = compile(s, r, map);
        const auto count = static_cast<std::size_t>(
            std::count_if(p.steps.begin(), p.steps.end(),
                          [](const Step& step) { return step.kind == Step::Kind::kSync; }));
        const auto [it, fresh] = meetings.emplace(map.host[static_cast<std::size_t>(r)], count);
        EXPECT_EQ(it->second, count) << s.name << " rank " << r;
      }
    }
  }
}

}  // namespace
}  // namespace stormo::comm
