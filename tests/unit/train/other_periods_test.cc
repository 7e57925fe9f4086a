// Averages in other steps than those of all parameters: the optimizer's moments more rarely
// (DES-LOC), and the ranks of a host more often. What runs must be equal to, what they send, and
// what a resumed one goes on with.
#include <cmath>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/limits.h>
#include <stormo/train/step/strategy.h>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/train/run_of_one_process.h"
#include "toy_cost.h"
#include "trainer_run.h"

namespace stormo::train::other_periods {
namespace {

using test::distance;
using testing::HasSubstr;

// --- by the plan, and by the formula of AdamW in one process -------------------------------------

constexpr int kPeriod = 2;
const std::vector<std::int64_t> kStatePeriods = {4, 6};
constexpr std::int64_t kNumbers = 7;

/// Of one rank or of one replica of the oracle, in float64: |x - b_r|^2 / 2, of which b_r differs.
torch::Tensor gradient(const torch::Tensor& x, int rank) {
  return x - torch::arange(kNumbers, torch::kFloat64) * (1.0 + rank);
}
torch::Tensor begin() { return torch::full({kNumbers}, 3.0, torch::kFloat64); }
/// Of a rank in steps (before, step]; in some it has none.
double samples(int rank, int before, int step) {
  double sum = 0;
  for (int s = before + 1; s <= step; ++s) sum += (rank + s) % 3;
  return sum;
}

TrainerOptions adamw(Strategy strategy) {
  TrainerOptions out;
  out.optimizer = {
      .kind = OptimizerOptions::Kind::kAdamW, .lr = 0.1, .weight_decay = 0.1, .epsilon = 1e-2};
  out.strategy = std::move(strategy);
  out.strategy.kind = Strategy::Kind::kParameterAveraging;
  return out;
}
TrainerOptions des_loc() { return adamw({.period = kPeriod, .state_periods = kStatePeriods}); }
TrainerOptions by_hosts() { return adamw({.period = 6, .local_period = 2}); }

struct Replica {
  torch::Tensor x = begin(), mean = torch::zeros_like(x), square = torch::zeros_like(x);

  void train(int rank, int step, const OptimizerOptions& o) {
    const torch::Tensor g = gradient(x, rank);
    mean = o.beta1 * mean + (1 - o.beta1) * g;
    square = o.beta2 * square + (1 - o.beta2) * g * g;
    const torch::Tensor m = mean / (1 - std::pow(o.beta1, step));
    const torch::Tensor v = square / (1 - std::pow(o.beta2, step));
    x = x * (1 - o.lr * o.weight_decay) - o.lr * m / (v.sqrt() + o.epsilon);
  }
};

constexpr int kSteps = 15, kMeeting = 9;  // in step 9 all meet
bool is_due(std::int64_t every, int step) { return step % every == 0 || step == kMeeting; }
/// The step before this one in which it was last; 0: none.
int due_before(std::int64_t every, int step) {
  for (--step; step > 0 && !is_due(every, step);) --step;
  return step;
}

/// Replicas that train by themselves, and averages among some of them or all.
class Oracle {
 public:
  explicit Oracle(int ranks) : replicas_(static_cast<std::size_t>(ranks)) {}
  void train(int step) {
    step_ = step;
    for (int r = 0; Replica & replica : replicas_) replica.train(r++, step, des_loc().optimizer);
  }
  /// Of `count` ranks from `first` on, if due; weighted by their samples since the last one.
  void average(torch::Tensor Replica::*what, std::int64_t every, int first, int count) {
    if (!is_due(every, step_)) return;
    torch::Tensor sum = torch::zeros_like(begin());
    double all = 0;
    for (int r = first; r < first + count; ++r) {
      const double weight = samples(r, due_before(every, step_), step_);
      sum += weight * (at(r).*what);
      all += weight;
    }
    for (int r = first; r < first + count; ++r) at(r).*what = sum / all;
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out;
    for (const Replica& r : replicas_) out.push_back(r.x);
    return out;
  }

 private:
  Replica& at(int rank) { return replicas_[static_cast<std::size_t>(rank)]; }
  std::vector<Replica> replicas_;
  int step_ = 0;
};

/// By step, then by rank: the parameters after it.
using Course = std::vector<std::vector<torch::Tensor>>;

Course expect_des_loc(int ranks) {
  Oracle oracle(ranks);
  Course out;
  for (int step = 1; step <= kSteps; ++step) {
    oracle.train(step);
    oracle.average(&Replica::x, kPeriod, 0, ranks);
    oracle.average(&Replica::mean, kStatePeriods[0], 0, ranks);
    oracle.average(&Replica::square, kStatePeriods[1], 0, ranks);
    out.push_back(oracle.values());
  }
  return out;
}

Course expect_by_hosts(int hosts, int local) {
  Oracle oracle(hosts * local);
  Course out;
  for (int step = 1; step <= kSteps; ++step) {
    oracle.train(step);
    for (const auto what : {&Replica::x, &Replica::mean, &Replica::square}) {
      for (int host = 0; host < hosts; ++host) oracle.average(what, 2, host * local, local);
      oracle.average(what, 6, 0, hosts * local);
    }
    out.push_back(oracle.values());
  }
  return out;
}

plan::StepPlan plan_of(const TrainerOptions& options, const std::vector<int>& hosts) {
  const plan::ModelShape shape{
      .segments = {{.name = "x",
                    .parameters = {{.name = "x", .elements = kNumbers, .dtype = DType::kFloat64}},
                    .borrowed = {}}}};
  return parallel::plan_for(options.strategy, shape, {.ranks_per_host = hosts}).take_or_throw();
}

/// Ranks that do the plan have these parameters after each step, and differ on the way.
void expect_course(const TrainerOptions& options, const std::vector<int>& hosts,
                   const Course& expected) {
  const plan::StepPlan plan = plan_of(options, hosts);
  test::Group group = comm::make_hosts(hosts);
  std::vector<AxisGroups::Groups> axes = test::groups_of(plan, hosts);
  test::on_ranks(group, [&](comm::Communicator& world) {
    const AxisGroups groups(world, plan.mesh,
                            std::move(axes[static_cast<std::size_t>(world.rank())]));
    const auto module = std::make_shared<torch::nn::Module>();
    const torch::Tensor x = module->register_parameter("x", begin());
    const auto store = make_store(plan, groups, module, options);
    store->set_plan(plan);
    for (int step = 1; step <= kSteps; ++step) {
      x.mutable_grad() = gradient(x.detach(), world.rank());
      throw_if_error(store->update({0, 1}, {.lr = options.optimizer.lr}));
      for (const plan::Action& a : plan.actions) {
        const plan::ActionRow& row = row_of(a.kind);
        if (!(row.averages() || row.averages_slot) || !is_due(a.every, step)) continue;
        const int before = due_before(a.every, step);
        throw_if_error(store->perform(a, samples(world.rank(), before, step)));
      }
      const auto& of_step = expected[static_cast<std::size_t>(step - 1)];
      const torch::Tensor& of_rank = of_step[static_cast<std::size_t>(world.rank())];
      EXPECT_LE((x.detach() - of_rank).abs().max().item<double>(), 1e-12)
          << "step " << step << ", rank " << world.rank();
    }
    throw_if_error(world.barrier());  // then nobody needs this rank's groups
  });
  EXPECT_GT((expected[6].front() - expected[6].back()).abs().max().item<double>(), 1e-3)
      << "ranks do not diverge";
}

TEST(OtherPeriodsOfAPlan, OfTheStateAreThoseOfOneProcess) {
  for (const int ranks : {2, 3, 5}) expect_course(des_loc(), {ranks}, expect_des_loc(ranks));
}

TEST(OtherPeriodsOfAPlan, OfHostsAreThoseOfOneProcess) {
  expect_course(by_hosts(), {2, 2}, expect_by_hosts(2, 2));
  expect_course(by_hosts(), {3, 3}, expect_by_hosts(2, 3));
  expect_course(by_hosts(), {2, 2, 2}, expect_by_hosts(3, 2));
}

// Whole replicas, and ones that are cut into stages and slices: each rank averages its part.
TEST(OtherPeriodsOfAPlan, OfPartsAreThoseOfReplicas) {
  const auto values_of = [](const std::vector<int>& hosts, Strategy strategy, int micro_batches) {
    strategy.kind = Strategy::Kind::kParameterAveraging;
    strategy.period = kPeriod;
    strategy.state_periods = kStatePeriods;
    test::PlanRun run = test::run_of({.name = "",
                                      .hosts = hosts,
                                      .strategy = strategy,
                                      .step = {.micro_batches = micro_batches}},
                                     test::mlp_problem(), {});
    run.options.optimizer = des_loc().optimizer;
    run.options.optimizer.lr = 0.01;
    run.batches = run.problem.batches(kSteps, 8);
    test::Values out;
    test::on_plan_ranks(run, [&](test::PlanRank& rank) {
      for (int step = 1; step <= kSteps; ++step) {
        rank.at = {.number = step, .closes = step == kSteps};
        rank.steps(1);
      }
      const test::Values mine = rank.values();
      if (rank.rank() == 0) out = mine;
      throw_if_error(rank.groups.world().barrier());  // then nobody needs this rank's groups
    });
    return out;
  };
  const test::Values whole = values_of({2}, {}, 1);
  test::expect_near(values_of({4}, {.pipeline = 2}, 2), whole, 1e-10, "stages");
  test::expect_near(values_of({2, 2}, {.pipeline = 2}, 2), whole, 1e-10, "stages on hosts");
  test::expect_near(values_of({4}, {.tensor = 2}, 1), whole, 1e-10, "slices");
}

TEST(OtherPeriodsOfAPlan, ARankDoesItsActionsAndSendsWhatTheyCost) {
  for (const bool cut : {false, true}) {
    Strategy strategy{.kind = Strategy::Kind::kParameterAveraging,
                      .period = 1,
                      .state_periods = {1, 1},
                      .pipeline = cut ? 2 : 1};
    const test::CutWay way{.name = "",
                           .hosts = std::vector<int>(cut ? 4 : 2, 1),
                           .strategy = strategy,
                           .step = {.micro_batches = 2}};
    test::PlanRun run = test::run_of(way, test::mlp_problem(), {});
    constexpr int kMany = 20;  // the first steps also send shapes
    run.batches = run.problem.batches(kMany, 8);
    const std::vector<test::PlanResult> ranks = test::train_by_plan(run);
    analysis::StepSizes sizes{.averaged_slots = 2};
    sizes.samples = 2;
    sizes.outputs = test::output_bytes(run.problem, sizes.samples);
    const analysis::StepCost cost = test::predicted_cost(run, sizes);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      test::expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), kMany);
      EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts));
    }
  }
}

// --- by the Trainer ------------------------------------------------------------------------------

class StatePeriods : public test::TrainerRun {
 protected:
  StatePeriods() : TrainerRun("stormo_state_periods_") {
    options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    options.global_batch = 13;  // of which ranks have unequal parts
    options.steps = 22;
    periods({8, 12});
  }
  void periods(std::vector<std::int64_t> of_state) {
    options.strategy = {.kind = Strategy::Kind::kParameterAveraging,
                        .period = 4,
                        .state_periods = std::move(of_state)};
  }
};

TEST_F(StatePeriods, ThatAreAllEqualAreLocalAveragingBitForBit) {
  for (const int ranks : {2, 3}) {
    periods({});
    const Outcome local = run(ranks);
    periods({4, 4});
    EXPECT_EQ(run(ranks).end.weights_hash, local.end.weights_hash) << ranks;
    periods({8, 12});
    EXPECT_GT(distance(run(ranks).values, local.values), 1e-6) << ranks;
  }
}

TEST_F(StatePeriods, LongerThanTheRunAreAveragesOfParametersAloneBitForBit) {
  for (const auto outer :
       {parallel::OuterOptimizer::Kind::kNone, parallel::OuterOptimizer::Kind::kNesterov}) {
    periods({});
    options.strategy.outer.kind = outer;
    options.strategy.average_state = Strategy::AverageState::kNo;
    const Outcome alone = run(3);
    periods({plan::kMaxPeriod, plan::kMaxPeriod});
    options.strategy.outer.kind = outer;
    EXPECT_EQ(run(3).end.weights_hash, alone.end.weights_hash);
    options.strategy.state_periods = {8, 12};
    EXPECT_NE(run(3).end.weights_hash, alone.end.weights_hash);
  }
}

TEST_F(StatePeriods, ResumedRunsEndInTheSameBits) {
  options.checkpoint = {.directory = folder, .every = 6};  // no multiple of any period
  for (const bool has_outer : {false, true}) {
    if (has_outer) options.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
    expect_bits_of_whole_run(3, {6, 12}, has_outer ? "with an outer optimizer" : "plain");
  }
}

// Ranks that are told to stop where only parameters are equal make one more step. They are told in
// step 3, agree on it after step 4, and save after step 5.
TEST_F(StatePeriods, AnInterruptedRunEndsInTheSameBits) {
  options.global_batch = 12;
  options.checkpoint = {.directory = folder, .every = 5};
  options.overwrite = true;
  options.steps = 20;
  const Outcome whole = run(2);
  options.checkpoint.every = 0;
  int updates = 0;
  on_action = [&](Rank rank, const plan::Action& a) {
    if (rank == 0 && makes(a, plan::Value::kUpdated) && ++updates == 3) std::raise(SIGTERM);
  };
  EXPECT_EQ(try_run(2).status().code(), Code::kInterrupted);
  on_action = nullptr;
  options.checkpoint.every = 5;
  EXPECT_EQ(resumed(2).end.weights_hash, whole.end.weights_hash);
}

// Both hosts of one rank, in 24 steps: 6 averages of parameters, 3 of the first moments, and 2 of
// the second ones. Before and after steps ranks send something else, too.
TEST_F(StatePeriods, ARunSendsWhatItsPlanSays) {
  options.log_every = 1000;  // a line of the log is no part of a step
  make_group = [](int ranks) {
    return comm::make_hosts(std::vector<int>(static_cast<std::size_t>(ranks), 1));
  };
  const auto sent = [this](int steps) {
    options.steps = steps;
    return run(2).end.bytes_sent_per_rank[1];
  };
  const plan::ModelShape shape = test::toy_shape();
  const std::vector<int> hosts = {1, 1};
  const plan::StepPlan plan =
      parallel::plan_for(options.strategy, shape, {.ranks_per_host = hosts}).take_or_throw();
  const auto cost = test::toy_cost(plan, hosts, options);
  const std::uint64_t in_24_steps = sent(48) - sent(24);
  EXPECT_EQ(in_24_steps, static_cast<std::uint64_t>(std::llround(24 * cost.mean[1].between_hosts)));
  // 2 (N-1) / N K (1/4 + 1/8 + 1/12), but for numbers that go along
  const double formula = 24 * 8.0 * static_cast<double>(num_elements(shape)) * (11.0 / 24);
  EXPECT_NEAR(static_cast<double>(in_24_steps) / formula, 1, 0.02);
}

TEST_F(StatePeriods, RefuseWhatHasNoMeaning) {
  const auto refused = [this] { return try_run(2).status().message(); };
  periods({8});
  EXPECT_THAT(refused(), HasSubstr("strategy.state_periods has 1 number(s), and the optimizer 2 "
                                   "slot(s): give one for each"));
  options.averaging.max_distance = 1;
  EXPECT_THAT(refused(), HasSubstr("go with a period that does not change: leave them out, or "
                                   "max_distance and period_seconds"));
  options.averaging = {};
  options.optimizer = {.kind = OptimizerOptions::Kind::kSgd, .lr = 0.1, .momentum = 0};
  EXPECT_THAT(refused(), HasSubstr("the optimizer has no state: leave out strategy.state_periods"));
  options.optimizer.momentum = 0.9;
  periods({6});
  EXPECT_THAT(refused(), HasSubstr("give multiples of period 4, up to 1048576, not 6"));
}

// Ranks that are threads on several hosts make no groups: so no Trainer averages there by hosts.
class LocalPeriod : public StatePeriods {
 protected:
  LocalPeriod() { local(2, 6); }
  void on(const std::vector<int>& hosts) {
    make_group = [hosts](int) { return comm::make_hosts(hosts); };
  }
  void local(int of_host, int of_all) {
    options.strategy = {
        .kind = Strategy::Kind::kParameterAveraging, .period = of_all, .local_period = of_host};
  }
};

TEST_F(LocalPeriod, ThatIsThePeriodOrOfHostsOfOneRankOrOfOneHostIsPlainAveragingBitForBit) {
  for (const auto& hosts : std::vector<std::vector<int>>{{2, 2}, {1, 1, 1}}) {
    on(hosts);
    const int ranks = hosts.front() * static_cast<int>(hosts.size());
    local(0, 6);
    const Outcome plain = run(ranks);
    local(hosts.front() > 1 ? 6 : 2, 6);
    EXPECT_EQ(run(ranks).end.weights_hash, plain.end.weights_hash);
  }
  on({3});
  local(0, 2);
  const Outcome one_host = run(3);
  local(2, 6);
  EXPECT_EQ(run(3).end.weights_hash, one_host.end.weights_hash);
}

// Of hosts with two ranks each, of which some host has no samples in a step.
TEST(LocalPeriodOfAPlan, ARankDoesItsActionsAndSendsWhatTheyCost) {
  const test::CutWay way{
      .name = "",
      .hosts = {2, 2, 2},
      .strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = 4, .local_period = 2}};
  test::PlanRun run = test::run_of(way, test::mlp_problem(), {});
  constexpr int kMany = 20;  // the first steps also send shapes
  run.batches = run.problem.batches(kMany, 13);
  run.batches[10] = run.batches[10].rows(0, 2);
  const std::vector<test::PlanResult> ranks = test::train_by_plan(run);
  const analysis::StepCost cost = test::predicted_cost(run, {.averaged_slots = 2});
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    test::expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), kMany);
    EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts));
    test::expect_near(ranks[r].values, ranks[0].values, 0, "of all ranks");
    for (const auto& [name, value] : ranks[r].values) {
      EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
    }
  }
}

TEST_F(LocalPeriod, RefusesWhatHasNoMeaning) {
  const auto refused = [this](int ranks) { return try_run(ranks).status().message(); };
  on({2, 2});
  local(4, 6);
  EXPECT_THAT(refused(4), HasSubstr("give a local_period that divides period 6, not 4"));
  local(2, 6);
  options.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  EXPECT_THAT(refused(4), HasSubstr("leave out local_period, or outer, state_periods"));
  local(2, 6);
  on({2, 1});
  EXPECT_THAT(refused(3), HasSubstr("start as many on one host as on the others"));
}

}  // namespace
}  // namespace stormo::train::other_periods
