// Compiled programs of all ranks, interleaved at random on a memory model, must reach the goal.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <numeric>

#include <stormo/base/rng.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/schedule/builders.h>

namespace stormo::comm {
namespace {

using plan::Schedule;

/// In the order of their local ranks.
std::vector<std::size_t> ranks_of(const HostMap& map, int host) {
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < map.host.size(); ++r) {
    if (map.host[r] == host) ranks.push_back(r);
  }
  return ranks;
}

/// One number per rank, memory and chunk; ranks advance one step at a time in random order.
/// Memories that a rank does not have hold garbage.
class Machine {
 public:
  Machine(const Schedule& schedule, const std::vector<int>& hosts, std::uint64_t seed)
      : schedule_(schedule), map_(HostMap::of(hosts)), rng_(seed, "compile_test") {
    const auto n = static_cast<std::size_t>(schedule.ranks);
    for (std::size_t r = 0; r < n; ++r) {
      programs_.push_back(compile(schedule, static_cast<Rank>(r), map_));
      Areas& areas = memory_.emplace_back();
      areas.fill(std::vector<double>(static_cast<std::size_t>(schedule.chunks), kGarbage));
      for (int c = 0; c < schedule.chunks; ++c) {
        const auto source = plan::only_source(schedule, c);
        if (source && *source != static_cast<Rank>(r)) continue;
        memory(r, area_of(schedule, static_cast<Rank>(r), c, true), c) = input(r, c);
      }
    }
    next_.assign(n, 0);
    barriers_.assign(n, 0);
    sent_.assign(n, false);
    received_.resize(n);
  }
  static double input(std::size_t rank, int chunk) {
    return static_cast<double>((rank + 1) * 1000 + static_cast<std::size_t>(chunk));
  }
  static double scale(std::size_t rank) { return static_cast<double>(rank % 3) + 2; }

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
  /// The outcome of a chunk at a rank.
  double at(std::size_t rank, int chunk) {
    return memory(rank, area_of(schedule_, static_cast<Rank>(rank), chunk, false), chunk);
  }

 private:
  static constexpr double kGarbage = -1e9;
  using Areas = std::array<std::vector<double>, 4>;

  bool done() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < programs_[r].steps.size()) return false;
    }
    return true;
  }
  double& memory(std::size_t rank, Area area, int chunk) {
    return memory_[rank][static_cast<std::size_t>(area)][static_cast<std::size_t>(chunk)];
  }
  /// The rank that has a place, as rank r sees it.
  std::size_t peer(std::size_t r, const Place& place) const {
    return ranks_of(map_, map_.host[r])[static_cast<std::size_t>(place.local)];
  }
  /// As rank r sees it; other ranks may be looked at only where their programs say so.
  double& memory(std::size_t r, const Place& place, int chunk) {
    const std::size_t owner = peer(r, place);
    if (owner != r) {
      const Program& p = programs_[owner];
      const bool shared = place.area == Area::kIn    ? p.shares_in
                          : place.area == Area::kOut ? p.shares_out
                                                     : p.uses_scratch;
      EXPECT_TRUE(shared && place.area != Area::kStaging) << "rank " << r << " looks at " << owner;
    }
    const std::vector<bool>& unshared = programs_[owner].unshared;
    if (place.area == Area::kOut && !unshared.empty()) {
      EXPECT_EQ(unshared[static_cast<std::size_t>(chunk)], owner == r)
          << "rank " << r << " uses chunk " << chunk << " of " << owner;
    }
    return memory(owner, place.area, chunk);
  }

  bool advance(std::size_t r) {
    if (next_[r] == programs_[r].steps.size()) return false;
    const Instruction& s = programs_[r].steps[next_[r]];
    switch (s.kind) {
      case Instruction::Kind::kSync:
        if (!meet(r)) return false;
        break;
      case Instruction::Kind::kReduce: reduce(r, s); break;
      case Instruction::Kind::kCopy:
        memory(r, s.destinations[0], s.chunk) = memory(r, s.sources[0].place, s.chunk);
        break;
      case Instruction::Kind::kExchange:
        if (!exchange(r, s)) return false;
        break;
      case Instruction::Kind::kPrefix: ADD_FAILURE() << "no schedule compiles to this"; break;
    }
    ++next_[r];
    return true;
  }

  bool meet(std::size_t r) {
    if (!arrived_[r]) {
      arrived_[r] = true;
      ++barriers_[r];
    }
    for (const std::size_t p : ranks_of(map_, map_.host[r])) {
      if (barriers_[p] < barriers_[r]) return false;
    }
    arrived_[r] = false;
    return true;
  }

  void reduce(std::size_t r, const Instruction& s) {
    double sum = 0;
    for (const Source& source : s.sources) {
      if (source.received >= 0) {
        sum += received_[r][static_cast<std::size_t>(source.received)];
        continue;
      }
      const std::size_t p = peer(r, source.place);
      sum += memory(r, source.place, s.chunk) * (source.raw ? scale(p) : 1);
    }
    for (const Place& d : s.destinations) memory(r, d, s.chunk) = sum;
  }

  bool exchange(std::size_t r, const Instruction& s) {
    if (!sent_[r]) {
      for (const WireMove& m : s.sends) {
        wire_[{static_cast<Rank>(r), m.peer}].push_back(memory(r, m.area, m.chunk));
      }
      sent_[r] = true;
    }
    std::map<Rank, std::size_t> needed;
    for (const WireMove& m : s.receives) ++needed[m.peer];
    for (const auto& [peer, count] : needed) {
      if (wire_[{peer, static_cast<Rank>(r)}].size() < count) return false;
    }
    received_[r].clear();
    for (const WireMove& m : s.receives) {
      auto& queue = wire_[{m.peer, static_cast<Rank>(r)}];
      received_[r].push_back(queue.front());
      if (m.how == plan::ReceiveOp::kCopy) memory(r, m.area, m.chunk) = queue.front();
      queue.pop_front();
    }
    sent_[r] = false;
    return true;
  }

  const Schedule& schedule_;
  HostMap map_;
  Rng rng_;
  std::vector<Program> programs_;
  std::vector<Areas> memory_;
  std::vector<std::size_t> next_;
  std::vector<int> barriers_;
  std::vector<bool> sent_;
  std::vector<std::vector<double>> received_;
  std::map<std::size_t, bool> arrived_;
  std::map<std::pair<Rank, Rank>, std::deque<double>> wire_;
};

const std::vector<std::vector<int>> kHosts = {{1},    {2},       {3},       {5},          {1, 1},
                                              {2, 2}, {3, 3, 3}, {1, 2, 3}, {2, 2, 2, 2}, {4, 1}};

double reduced(plan::Terms terms, int chunk) {
  double sum = 0;
  for (Rank r = terms.first; r < terms.end; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    sum += Machine::input(rank, chunk) * Machine::scale(rank);
  }
  return sum;
}

double wanted(const Schedule& s, int rank, int chunk) {
  if (const auto source = only_source(s, chunk)) {
    return Machine::input(static_cast<std::size_t>(*source), chunk);
  }
  return reduced(plan::terms_at(s, rank), chunk);
}

void expect_goal(const Schedule& s, const std::vector<int>& hosts) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Machine machine(s, hosts, seed);
    ASSERT_TRUE(machine.run()) << s.name << ": no rank can go on";
    for (int r = 0; r < s.ranks; ++r) {
      for (int c = 0; c < s.chunks; ++c) {
        const auto target = only_target(s, c);
        if (target && *target != r) continue;
        ASSERT_EQ(machine.at(static_cast<std::size_t>(r), c), wanted(s, r, c))
            << s.name << " rank " << r << " chunk " << c;
      }
    }
  }
}

TEST(Compile, EveryScheduleReachesItsGoalOnEveryPlacement) {
  for (const auto& hosts : kHosts) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    for (const schedule::Builder& b : schedule::builders()) {
      if (b.takes.even_hosts && host_layout_of(hosts) == HostLayout::kUneven) continue;
      for (const int pieces : {1, 3}) {
        if (pieces > 1 && !b.takes.pieces) continue;
        const schedule::ScheduleShape shape{n, hosts, b.takes.root ? n - 1 : 0, pieces};
        expect_goal(b.build(shape).take_or_throw(), hosts);
      }
    }
  }
}

TEST(Selection, EveryShippedChoiceSuitsItsHosts) {
  for (const auto& hosts : kHosts) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    for (const plan::GoalKind goal : plan::kGoalKinds) {
      for (const std::uint64_t bytes : {0u, 10u, 10'000u, 100'000u, 100'000'000u}) {
        const Choice choice = Selection::defaults().choose(goal, host_layout_of(hosts), n, bytes);
        EXPECT_TRUE(check_choice(choice, goal, hosts).ok());
        const Schedule s = build(choice, {goal, 0}, hosts).take_or_throw();
        EXPECT_EQ(s.goal.kind, goal) << s.name;
        EXPECT_EQ(s.ranks, n);
      }
    }
  }
}

TEST(Selection, TheFirstRuleThatFitsWinsAndTheShippedOnesFillIn) {
  const auto selection = parse_selection(
      "selection v1\n"
      "all_reduce one_host ranks=4 bytes=100 star_all_reduce pieces=1\n"
      "all_reduce one_host ranks=0 bytes=100 ring_all_reduce pieces=3\n");
  ASSERT_TRUE(selection.ok()) << selection.status().to_string();
  const auto name = [&](int ranks, std::uint64_t bytes) {
    return selection->choose(plan::GoalKind::kAllReduce, HostLayout::kOneHost, ranks, bytes)
        .builder->name;
  };
  EXPECT_EQ(name(4, 100), "star_all_reduce");
  EXPECT_EQ(name(5, 100), "ring_all_reduce");
  EXPECT_EQ(name(5, 101), "direct_all_reduce");
  EXPECT_EQ(parse_selection(to_text(*selection)).take_or_throw(), *selection);
  EXPECT_EQ(parse_selection(to_text(Selection::defaults())).take_or_throw(), Selection::defaults());
}

TEST(Selection, ErrorsNameThePlaceAndTheReason) {
  const auto message = [](std::string_view line) {
    return parse_selection("selection v1\n" + std::string(line)).status().message();
  };
  EXPECT_EQ(parse_selection("all_reduce one_host").status().message(),
            "1:1: expected 'selection v1' in front of everything else");
  EXPECT_NE(message("all_reduce moon ranks=0 bytes=0 x pieces=1").find("2:12: unknown host layout"),
            std::string::npos);
  EXPECT_NE(message("scan one_host ranks=0 bytes=0 ring_all_reduce pieces=1")
                .find("ring_all_reduce is no algorithm for scan"),
            std::string::npos);
  EXPECT_NE(message("scan one_host ranks=0 bytes=0 brent_king_scan pieces=1").find("did you mean"),
            std::string::npos);
}

TEST(Compile, AReducedChunkThatIsSentOnLaterIsKept) {
  // rank 1 reduces, passes the sum to rank 2 and, a round later, to the root as well
  const Schedule s = plan::parse_schedule(
                         "schedule v1 detour reduce root=0 ranks=3 chunks=1\n"
                         "round 0: 0>1 +c0 2>1 +c0\n"
                         "round 1: 1>2 =c0\n"
                         "round 2: 1>0 =c0\n")
                         .take_or_throw();
  for (const std::vector<int>& hosts : {std::vector{3}, std::vector{1, 2}}) expect_goal(s, hosts);
}

TEST(Compile, RanksShareOnlyWhatOthersRead) {
  const HostMap map = HostMap::of({3});
  const Program gather = compile(schedule::direct_all_gather(3), 0, map);
  EXPECT_TRUE(gather.shares_in);
  EXPECT_FALSE(gather.shares_out) << "everybody writes its own output";
  const Program scatter = compile(schedule::direct_scatter(3, 0), 1, map);
  EXPECT_FALSE(scatter.shares_in || scatter.shares_out || scatter.uses_scratch);
  EXPECT_TRUE(compile(schedule::binomial_gather(4, 0), 2, HostMap::of({4})).uses_scratch);
}

TEST(Compile, ReductionsOfARoundArePassesInTheOrderOfRanks) {
  // one host of two ranks, one of one: what comes from another host takes its place among the ranks
  const Program p = compile(schedule::one_shot_all_reduce(3), 1, HostMap::of({1, 2}));
  const auto reduce = std::find_if(p.steps.begin(), p.steps.end(), [](const Instruction& s) {
    return s.kind == Instruction::Kind::kReduce && s.sources.size() == 3;
  });
  ASSERT_NE(reduce, p.steps.end());
  EXPECT_EQ(reduce->sources[0].received, 0);
  EXPECT_EQ(reduce->sources[1].place.local, 0);
  EXPECT_EQ(reduce->sources[2].place.local, 1);
  EXPECT_EQ(reduce->destinations[0].area, Area::kStaging) << "the peer still reads the old value";
}

TEST(Compile, DirectAllReduceOnOneHostIsOnePassAndOneMeeting) {
  const Program p = compile(schedule::direct_all_reduce(4), 1, HostMap::of({4}));
  ASSERT_EQ(p.steps.size(), 2u);
  EXPECT_EQ(p.steps[0].kind, Instruction::Kind::kReduce);
  EXPECT_EQ(p.steps[0].chunk, 1);
  ASSERT_EQ(p.steps[0].sources.size(), 4u);
  ASSERT_EQ(p.steps[0].destinations.size(), 4u);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(p.steps[0].sources[static_cast<std::size_t>(r)].place.local, r);
    EXPECT_EQ(p.steps[0].destinations[static_cast<std::size_t>(r)].local, r);
  }
  EXPECT_EQ(p.steps[1].kind, Instruction::Kind::kSync);
  EXPECT_EQ(p.unshared, (std::vector<bool>{false, true, false, false}));
}

TEST(Compile, InAGatherEachRankWritesItsOwnPartBeforeTheLastMeeting) {
  for (const Rank me : {0, 1, 2}) {
    const Program p = compile(schedule::direct_gather(3, 0), me, HostMap::of({3}));
    ASSERT_EQ(p.steps.size(), 2u);
    EXPECT_EQ(p.steps[0].kind, Instruction::Kind::kCopy);
    EXPECT_EQ(p.steps[0].sources,
              (std::vector<Source>{{.place = {me, Area::kIn}, .raw = me == 0}}));
    EXPECT_EQ(p.steps[0].destinations, (std::vector<Place>{{0, Area::kOut}}));
    EXPECT_EQ(p.steps[1].kind, Instruction::Kind::kSync);
    EXPECT_FALSE(p.shares_in);
    EXPECT_EQ(p.shares_out, me == 0);
  }
}

TEST(Compile, RanksOfAHostMeetEquallyOften) {
  for (const auto& hosts : kHosts) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    const HostMap map = HostMap::of(hosts);
    for (const Schedule& s : {schedule::ring_all_reduce(n), schedule::binomial_broadcast(n, 0)}) {
      std::map<int, std::size_t> barriers;
      for (Rank r = 0; r < n; ++r) {
        const Program p = compile(s, r, map);
        const auto count = static_cast<std::size_t>(std::count_if(
            p.steps.begin(), p.steps.end(),
            [](const Instruction& step) { return step.kind == Instruction::Kind::kSync; }));
        const auto [it, fresh] = barriers.emplace(map.host[static_cast<std::size_t>(r)], count);
        EXPECT_EQ(it->second, count) << s.name << " rank " << r;
      }
    }
  }
}

}  // namespace
}  // namespace stormo::comm
