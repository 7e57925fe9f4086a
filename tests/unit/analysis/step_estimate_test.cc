// Cost, memory and simulation of step plans, against figures worked out by hand.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

/// Two segments of 1600 and 3200 float32 numbers.
plan::ModelShape model() {
  plan::ModelShape m;
  m.segments = {
      {.name = "first", .parameters = {{"a", 1600}}, .flops_per_sample = 0, .borrowed = {}},
      {.name = "second", .parameters = {{"b", 3200}}, .flops_per_sample = 0, .borrowed = {}}};
  return m;
}

StepPlan on_axes(std::vector<plan::Axis> axes, std::vector<Placement> parameters) {
  StepPlan p;
  p.mesh = {std::move(axes)};
  p.model = model();
  p.parameters = p.optimizer_state = p.frozen = std::move(parameters);
  return p;
}

StepPlan replicas(int ranks) {
  StepPlan p = on_axes({{"dp", ranks}}, {Placement::kReplicate});
  p.actions = {{.kind = ActionKind::kLoad},
               {.kind = ActionKind::kForward, .range = {0, 1}},
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kBackward, .range = {0, 1}},
               {.kind = ActionKind::kAllReduce, .range = {0, 1}, .axes = {"dp"}},
               {.kind = ActionKind::kUpdate, .range = {0, 1}},
               {.kind = ActionKind::kAgree}};
  return p;
}

/// Workers of parameter servers.
StepPlan workers(int ranks) {
  StepPlan p = on_axes({{"dp", ranks}}, {Placement::kRemote});
  p.frozen = {Placement::kReplicate};
  p.scaled_loss = true;
  p.actions = {{.kind = ActionKind::kLoad},
               {.kind = ActionKind::kPull, .range = {0, 1}, .axes = {"dp"}},
               {.kind = ActionKind::kForward, .range = {0, 1}},
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kBackward, .range = {0, 1}},
               {.kind = ActionKind::kNorm},
               {.kind = ActionKind::kUnscale},
               {.kind = ActionKind::kPush, .range = {0, 1}, .axes = {"dp"}}};
  return p;
}

/// Stage 3; the second all_gather of forward is under way while the first segment computes.
StepPlan shards(int ranks, bool asynchronous = false) {
  StepPlan p = on_axes({{"shard", ranks}}, {Placement::kShard});
  const auto gather = [&](int s) {
    return Action{.kind = ActionKind::kAllGather,
                  .range = {s, s},
                  .axes = {"shard"},
                  .asynchronous = asynchronous};
  };
  const auto compute = [](ActionKind kind, int s) { return Action{.kind = kind, .range = {s, s}}; };
  const auto over = [](ActionKind kind, int s) {
    return Action{.kind = kind, .range = {s, s}, .axes = {"shard"}};
  };
  p.actions = {{.kind = ActionKind::kLoad},
               gather(0),
               gather(1),
               compute(ActionKind::kForward, 0),
               over(ActionKind::kReshard, 0),
               compute(ActionKind::kForward, 1),
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kSumWeights},
               compute(ActionKind::kBackward, 1),
               over(ActionKind::kReduceScatter, 1),
               compute(ActionKind::kReleaseGradients, 1),
               over(ActionKind::kReshard, 1),
               gather(0),
               compute(ActionKind::kBackward, 0),
               over(ActionKind::kReduceScatter, 0),
               compute(ActionKind::kReleaseGradients, 0),
               over(ActionKind::kReshard, 0),
               {.kind = ActionKind::kFindUnused},
               {.kind = ActionKind::kUpdate, .range = {0, 1}},
               {.kind = ActionKind::kAgree}};
  return p;
}

/// Each rank sends the whole buffer once, to another host where there is one.
Result<std::vector<Traffic>> whole_buffer(const std::vector<int>& ranks_per_host,
                                          const Collective& c) {
  int ranks = 0;
  for (const int n : ranks_per_host) ranks += n;
  const bool far = ranks_per_host.size() > 1;
  return std::vector<Traffic>(
      static_cast<std::size_t>(ranks),
      {.between_hosts = far ? c.bytes() : 0, .in_host = far ? 0 : c.bytes()});
}

TEST(StepCost, CountsEveryCollectiveOfEveryAxis) {
  for (const StepPlan& p : {replicas(2), shards(2)}) ASSERT_TRUE(verify(p).ok());
  const auto replicated = cost(replicas(2), {1, 1}, {.agreed_numbers = 7}, whole_buffer);
  ASSERT_TRUE(replicated.ok());
  // weights of the average, two flags and 4800 gradients, 7 numbers
  const std::int64_t each = 8 + 4 * (2 + 4800) + 8 * 7;
  EXPECT_EQ(replicated->ranks, std::vector<Traffic>(2, {.between_hosts = each}));
  EXPECT_EQ(replicated->total(), (Traffic{.between_hosts = 2 * each}));
  ASSERT_EQ(replicated->axes.size(), 1u);
  EXPECT_EQ(replicated->axes[0].collectives, 3);
  EXPECT_EQ(replicated->axes[0].payload, each);

  // in a host nobody adds up weights beforehand
  const auto near = cost(replicas(2), {2}, {.agreed_numbers = 7}, whole_buffer);
  EXPECT_EQ(near->ranks[0], (Traffic{.in_host = each - 8}));

  // in 16 bits on their way: a part is a multiple of 16 numbers
  StepPlan narrow = shards(3);
  for (Action& a : narrow.actions) {
    if (row_of(a.kind).reduces) a.codec = Codec::kBFloat16;
  }
  const auto sharded = cost(narrow, {1, 2}, {.agreed_numbers = 7}, whole_buffer);
  ASSERT_TRUE(sharded.ok());
  const std::int64_t first = 1632, second = 3216;  // multiples of 48
  EXPECT_EQ(sharded->ranks[0].between_hosts,
            4 * (2 * first + second) + 2 * (first + second) + 8 + 2 + 8 * 7);
}

TEST(StepCost, WorkersExchangeBytesWithServersOnly) {
  StepPlan p = workers(3);
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  const auto served = cost(p, {2, 1}, {.agreed_numbers = 7}, whole_buffer);
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(served->pulled, 4 * 4800);
  EXPECT_EQ(served->pushed, 4 * 4800);
  EXPECT_EQ(served->total(), Traffic{});
  EXPECT_TRUE(served->axes.empty());
  // what is not trained stays on the worker; of a table only rows are pushed
  p.model.segments[0].parameters[0].trainable = false;
  p.model.segments[1].parameters[0].sparse = true;
  const auto table = cost(p, {3}, {}, whole_buffer);
  EXPECT_EQ(table->pulled, 4 * 3200);
  EXPECT_EQ(table->pushed, 0);
  EXPECT_EQ(cost(replicas(2), {2}, {}, whole_buffer)->pulled, 0);
}

TEST(StepCost, AnErrorOfACollectiveIsTheCallers) {
  const auto outcome = cost(replicas(2), {2}, {}, [](const std::vector<int>&, const Collective&) {
    return Result<std::vector<Traffic>>(invalid_argument("no such algorithm"));
  });
  EXPECT_EQ(outcome.status().message(), "no such algorithm");
}

/// The price of a step is tested against what ranks count on their sockets. Here its simulation: if
/// a byte takes a second, the lane of communication is busy for as many seconds as there are bytes.
TEST(StepSimulation, EveryPricedTransferTakesTime) {
  const struct {
    StepPlan plan;
    std::vector<int> hosts;
  } cases[] = {{replicas(2), {1, 1}},
               {replicas(3), {1, 1, 1}},
               {shards(2), {1, 1}},
               {shards(2, /*asynchronous=*/true), {1, 1}},
               {workers(3), {1, 1, 1}}};
  const StepSizes sizes{.agreed_numbers = 7};
  for (const auto& [plan, hosts] : cases) {
    const StepCost priced = cost(plan, hosts, sizes, whole_buffer).take_or_throw();
    const StepSimulation played =
        simulate(plan, hosts, sizes,
                 {.compute = [](Rank, const Action&) { return 0.0; },
                  .collective = [](const std::vector<int>&, const Collective& c) -> Result<double> {
                    return static_cast<double>(c.bytes());
                  },
                  .servers = {.latency_s = 0, .seconds_per_byte = 1}})
            .take_or_throw();
    std::vector<double> seconds(hosts.size());
    for (const SimulatedAction& a : played.timeline) {
      if (a.lane == Lane::kCommunication) {
        seconds[static_cast<std::size_t>(a.rank)] += a.end - a.start;
      }
    }
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      const std::int64_t bytes = priced.ranks[r].between_hosts + priced.pulled + priced.pushed;
      EXPECT_GT(bytes, 0);
      EXPECT_EQ(seconds[r], static_cast<double>(bytes)) << "rank " << r << "\n" << to_text(plan);
    }
  }
}

TEST(StepMemory, ReplicasHoldAllAndShardsAPart) {
  const StepMemory one = memory(replicas(2), {.optimizer_numbers = 2});
  EXPECT_EQ(one.between_steps, (Memory{.parameters = 19200, .optimizer_state = 38400}));
  EXPECT_EQ(one.peak, (Memory{.parameters = 19200, .gradients = 19200, .optimizer_state = 38400}));
  EXPECT_EQ(one.peak_action, 3u);  // backward

  const StepPlan p = shards(2);
  const StepMemory part = memory(p, {.optimizer_numbers = 2});
  EXPECT_EQ(part.between_steps, (Memory{.parameters = 9600, .optimizer_state = 19200}));
  // both segments whole and in parts, the second one's gradients where autograd left them and in
  // the buffer that they travel in
  EXPECT_EQ(part.peak_action, 9u);
  EXPECT_EQ(
      part.peak,
      (Memory{.parameters = 9600 + 4 * 3200, .gradients = 2 * 4 * 3200, .optimizer_state = 19200}));
}

TEST(StepMemory, AWorkerHasACopyAndNoOptimizerState) {
  const StepMemory m = memory(workers(2), {.optimizer_numbers = 2});
  EXPECT_EQ(m.between_steps, (Memory{.parameters = 19200}));
  EXPECT_EQ(m.peak, (Memory{.parameters = 19200, .gradients = 19200}));
  EXPECT_EQ(m.peak_action, 4u);  // backward
}

TEST(StepMemory, ActivationsLiveFromForwardToBackward) {
  const StepMemory m = memory(replicas(1), {.activations = {1'000'000, 500'000}});
  EXPECT_EQ(m.between_steps.activations, 0);
  EXPECT_EQ(m.peak.activations, 1'500'000);
  EXPECT_EQ(m.peak.gradients, 19200);  // before they go, all gradients are there
}

/// A segment takes a second forward and two backward; a collective 0.5 s; nothing else any time.
StepTimes seconds() {
  return {.compute =
              [](Rank, const Action& a) {
                if (a.kind == ActionKind::kForward) return 1.0 * a.range.size();
                return a.kind == ActionKind::kBackward ? 2.0 * a.range.size() : 0.0;
              },
          .collective =
              [](const std::vector<int>&, const Collective& c) {
                return Result<double>(c.elements > 100 ? 0.5 : 0.0);
              }};
}

TEST(StepSimulate, WhatIsAsynchronousIsHiddenBehindComputations) {
  const auto one_by_one = simulate(shards(2), {2}, {}, seconds());
  ASSERT_TRUE(one_by_one.ok());
  EXPECT_DOUBLE_EQ(one_by_one->seconds, 6 + 5 * 0.5);
  EXPECT_EQ(one_by_one->compute, (std::vector<double>{6, 6}));
  EXPECT_DOUBLE_EQ(one_by_one->idle_share(), 2.5 / 8.5);
  // of three gathers the second is hidden; the first and the third have nothing before them
  const auto hidden = simulate(shards(2, /*asynchronous=*/true), {2}, {}, seconds());
  EXPECT_DOUBLE_EQ(hidden->seconds, 8.0);
  for (const SimulatedAction& a : hidden->timeline) EXPECT_LT(a.start, a.end);
}

// The second segment's gradients are sent while those of the first are computed.
TEST(StepSimulate, BucketsAreSentWhileBackwardGoesOn) {
  StepPlan p = replicas(2);
  p.actions.erase(p.actions.begin() + 4);
  p.actions.insert(p.actions.begin() + 3, {.kind = ActionKind::kSumWeights, .asynchronous = true});
  for (const int s : {0, 1}) {
    p.actions.insert(
        p.actions.begin() + 5,
        {.kind = ActionKind::kAllReduce, .range = {s, s}, .axes = {"dp"}, .asynchronous = true});
  }
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  const ComputeTimes each{.forward = {1, 1}, .backward = {3, 2}};
  const auto s = simulate(p, {1, 1}, {},
                          {.compute = compute_times(p, each),
                           .collective = [](const auto&, const Collective& c) -> Result<double> {
                             return c.elements > 100 ? 2.0 : 0.0;
                           }});
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  // forward 2, backward 2 + 3; the first bucket takes from 4 to 6, the second from 7 to 9
  EXPECT_DOUBLE_EQ(s->seconds, 9);
}

TEST(StepSimulate, TheSlowestRankHoldsUpTheOthers) {
  StepTimes times = seconds();
  times.compute = [base = times.compute](Rank r, const Action& a) {
    return base(r, a) * (r == 1 ? 3 : 1);
  };
  const auto s = simulate(replicas(4), {4}, {}, times);
  ASSERT_TRUE(s.ok());
  EXPECT_DOUBLE_EQ(s->seconds, 18.5);
  EXPECT_EQ(s->compute, (std::vector<double>{6, 18, 6, 6}));
  double waited = 0;
  for (const SimulatedAction& a : s->timeline) {
    if (a.lane == Lane::kWait && a.rank == 0) waited += a.end - a.start;
  }
  EXPECT_DOUBLE_EQ(waited, 12);
  EXPECT_TRUE(simulate(replicas(4), {4}, {}, times, Timeline::kDrop)->timeline.empty());
}

// Another rank's slowness costs a worker nothing.
TEST(StepSimulate, AWorkerWaitsForItsOwnTransfersOnly) {
  StepTimes times = seconds();
  times.servers = {.latency_s = 0.5, .seconds_per_byte = 1.0 / (4 * 4800)};
  times.compute = [base = times.compute](Rank r, const Action& a) {
    return base(r, a) * (r == 1 ? 3 : 1);
  };
  const auto s = simulate(workers(3), {3}, {}, times);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->finish, (std::vector<double>{6 + 2 * 1.5, 18 + 2 * 1.5, 6 + 2 * 1.5}));
  std::vector<std::size_t> sent;
  for (const SimulatedAction& a : s->timeline) {
    EXPECT_NE(a.lane, Lane::kWait);
    if (a.lane == Lane::kCommunication && a.rank == 2) sent.push_back(a.action);
  }
  EXPECT_EQ(sent, (std::vector<std::size_t>{1, 7}));
}

TEST(StepSimulate, ThousandsOfRanksTakeNoLongerThanTheirActions) {
  StepPlan p = shards(4096);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(simulate(p, std::vector<int>(512, 8), {}, seconds(), Timeline::kDrop).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

}  // namespace
}  // namespace stormo::analysis
