// Parameter averaging of replicas that are cut into stages and slices: each part has an average of
// its own, and all of them together are those of replicas that each train in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/plan/mixing/mixing.h>

#include "tests/unit/train/run_of_one_process.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using test::Values;

using Way = test::CutWay;

constexpr int kSteps = 7;  // 3, 3 and 1 of a last period
constexpr int kPeriod = 3;

/// Two replicas of cut models unless `hosts` says otherwise.
Way cut(std::string name, std::vector<int> hosts, Strategy strategy,
        const parallel::StepOptions& step = {}) {
  strategy.kind = Strategy::Kind::kParameterAveraging;
  return {std::move(name), std::move(hosts), std::move(strategy), step};
}

std::vector<Way> ways() {
  return {cut("stages", {4}, {.pipeline = 2}, {.micro_batches = 2}),
          cut("stages_on_hosts", {2, 2}, {.pipeline = 2}, {.micro_batches = 2, .clip = true}),
          cut("hosts_of_stages", {1, 1, 1, 1}, {.pipeline = 2}, {.micro_batches = 2}),
          cut("three_replicas_of_three_stages", {9}, {.pipeline = 3}, {.micro_batches = 3}),
          cut("zero_bubble", {4}, {.pipeline = 2, .schedule = "zero_bubble"}, {.micro_batches = 2}),
          cut("slices", {4}, {.tensor = 2}, {.clip = true}),
          cut("three_replicas_of_slices_on_hosts", {2, 2, 2}, {.tensor = 2}),
          cut("positions_between_slices", {4}, {.tensor = 2, .sequence_parallel = true}),
          cut("stages_of_slices", {8}, {.pipeline = 2, .tensor = 2}, {.micro_batches = 2}),
          cut("stages_of_slices_on_hosts", {4, 4}, {.pipeline = 2, .tensor = 2},
              {.micro_batches = 2, .clip = true, .recompute = true})};
}

std::vector<Problem> problems(const Way& way) {
  std::vector<Problem> out = {test::gpt_problem(true), test::gpt_problem(false)};
  if (way.strategy.sequence_parallel) return out;
  out.push_back(test::mlp_problem());
  out.push_back(test::with_frozen_segment(test::mlp_problem(), 0));
  return out;
}

class AveragedParts : public testing::TestWithParam<Way> {};

// With a period of 1 and SGD averages are synchronous training.
TEST_P(AveragedParts, OfEveryStepIsOneProcess) {
  Way way = GetParam();
  way.strategy.period = 1;
  way.step.clip = false;  // a replica clips its own gradient
  const int replicas = data_part(run_of(way, test::gpt_problem(), {}).plan.mesh, 0).parts;
  for (const Problem& problem : problems(way)) {
    test::expect_run_of_one_process(way, problem, replicas * way.step.micro_batches);
  }
}

/// AdamW by its formula, of one replica.
struct Replica {
  std::shared_ptr<model::Chain> chain;
  std::map<std::string, torch::Tensor> mean = {}, square = {};
  int steps = 0;
  double samples = 0;  // since the last average

  /// `mixed`: values that take the place of those of which the gradient is; null: none.
  void train(const Batch& batch, const TrainerOptions& options, const Values* mixed) {
    chain->zero_grad();
    model::cross_entropy(chain->forward(batch.x), batch.target).backward();
    const torch::NoGradGuard no_grad;
    double norm = 0;
    for (const torch::Tensor& p : chain->parameters()) {
      if (p.grad().defined()) norm += p.grad().square().sum().item<double>();
    }
    norm = std::sqrt(norm);
    // as torch::nn::utils::clip_grad_norm_
    const double clip = options.clip_norm > 0 ? options.clip_norm / (norm + 1e-6) : 1;
    for (auto& p : chain->named_parameters()) {
      if (mixed != nullptr && p.value().requires_grad()) p.value().copy_(mixed->at(p.key()));
    }
    ++steps;
    samples += static_cast<double>(batch.x.size(0));
    for (auto& p : chain->named_parameters()) {
      if (!p.value().requires_grad()) continue;
      const torch::Tensor g = p.value().grad() * std::min(1.0, clip);
      update(p.key(), p.value(), g, options.optimizer);
    }
  }
  void update(const std::string& name, torch::Tensor weights, const torch::Tensor& g,
              const OptimizerOptions& o) {
    if (!mean.contains(name)) mean[name] = torch::zeros_like(weights);
    if (!square.contains(name)) square[name] = torch::zeros_like(weights);
    mean[name] = o.beta1 * mean[name] + (1 - o.beta1) * g;
    square[name] = o.beta2 * square[name] + (1 - o.beta2) * g * g;
    const torch::Tensor m = mean[name] / (1 - std::pow(o.beta1, steps));
    const torch::Tensor v = square[name] / (1 - std::pow(o.beta2, steps));
    weights.mul_(1 - o.lr * o.weight_decay).sub_(o.lr * m / (v.sqrt() + o.epsilon));
  }
};

/// All of them get sum(n_r x_r) / sum(n_r) of weights and, with `state`, of both means.
void average(std::vector<Replica>& replicas, bool state) {
  const torch::NoGradGuard no_grad;
  double all = 0;
  for (const Replica& r : replicas) all += r.samples;
  const auto set = [&](const auto& values_of) {
    torch::Tensor sum = torch::zeros_like(values_of(replicas.front()));
    for (Replica& r : replicas) sum += values_of(r) * (r.samples / all);
    for (Replica& r : replicas) values_of(r).copy_(sum);
  };
  for (const auto& p : replicas.front().chain->named_parameters()) {
    if (!p.value().requires_grad()) continue;
    const std::string name = p.key();
    set([&](Replica& r) { return r.chain->named_parameters()[name]; });
    if (!state) continue;
    set([&](Replica& r) { return r.mean[name]; });
    set([&](Replica& r) { return r.square[name]; });
  }
  for (Replica& r : replicas) r.samples = 0;
}

/// An outer optimizer by its formula. The weights of all replicas are the averages.
struct Outer {
  parallel::OuterOptimizer rule;
  double lr;      // of the inner one
  Values common;  // with which a period begins
  Values momentum = {};

  void step(std::vector<Replica>& replicas) {
    const torch::NoGradGuard no_grad;
    for (auto& [name, x] : common) {
      const torch::Tensor g = x - replicas.front().chain->named_parameters()[name];
      torch::Tensor& v = momentum.try_emplace(name, torch::zeros_like(x)).first->second;
      if (rule.kind == parallel::OuterOptimizer::Kind::kNesterov) {
        v = rule.momentum * v + g;
        x = x - rule.lr * (g + rule.momentum * v);
      } else {
        v = rule.momentum * v + g / lr;
        x = x - rule.lr * lr * v;
      }
      for (Replica& r : replicas) r.chain->named_parameters()[name].copy_(x);
    }
  }
};

/// The weighted means of neighbours, by replica.
std::vector<Values> mixed_values(const std::vector<Replica>& replicas,
                                 const plan::MixingMatrix& w) {
  const torch::NoGradGuard no_grad;
  std::vector<Values> out(replicas.size());
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    for (const plan::MixingTerm& t : w[r]) {
      for (const auto& [name, value] :
           test::values_of(*replicas[static_cast<std::size_t>(t.from)].chain)) {
        const auto [mean, is_new] = out[r].try_emplace(name, torch::zeros_like(value));
        mean->second += t.weight * value;
      }
    }
  }
  return out;
}

/// Weights become the means of neighbours.
void mix(std::vector<Replica>& replicas, const plan::MixingMatrix& w) {
  const torch::NoGradGuard no_grad;
  const std::vector<Values> mixed = mixed_values(replicas, w);
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    for (auto& p : replicas[r].chain->named_parameters()) p.value().copy_(mixed[r].at(p.key()));
  }
}

/// What one process computes that trains each replica by itself.
struct Oracle {
  std::vector<Values> values;   // after each average
  std::vector<double> squares;  // before it: of the distances between the replicas and their mean
};

/// Null: replicas do not mix.
const plan::Action* mix_of(const PlanRun& run) {
  const auto found =
      std::ranges::find(run.plan.actions, plan::ActionKind::kMix, &plan::Action::kind);
  return found == run.plan.actions.end() ? nullptr : &*found;
}

bool averages_state(const PlanRun& run) {
  return std::ranges::any_of(run.plan.actions, [](const plan::Action& a) {
    return row_of(a.kind).averages() && row_of(a.kind).averages_state;
  });
}

Oracle train_alone(const PlanRun& run) {
  const int parts = data_part(run.plan.mesh, 0).parts;
  std::vector<Replica> replicas;
  for (int r = 0; r < parts; ++r) replicas.push_back({.chain = run.problem.model(3)});
  const bool has_outer = run.options.strategy.outer.kind != parallel::OuterOptimizer::Kind::kNone;
  Outer outer{.rule = run.options.strategy.outer, .lr = run.options.optimizer.lr, .common = {}};
  for (const auto& p : replicas.front().chain->named_parameters()) {
    if (p.value().requires_grad()) outer.common[p.key()] = p.value().detach().clone();
  }
  Oracle out;
  const plan::Action* const mixes = mix_of(run);
  std::optional<plan::Mixing> mixing;
  if (mixes != nullptr) mixing = plan::mixing_of(mixes->algorithm, parts).take_or_throw();
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Values> ahead;
    if (mixing && mixes->asynchronous) ahead = mixed_values(replicas, mixing->at(step - 1));
    const Batch& all = run.batches[static_cast<std::size_t>(step - 1)];
    const std::int64_t rows = all.x.size(0);
    for (int r = 0; r < parts; ++r) {
      const std::int64_t begin = rows * r / parts, end = rows * (r + 1) / parts;
      const auto at = static_cast<std::size_t>(r);
      replicas[at].train(all.rows(begin, end - begin), run.options,
                         ahead.empty() ? nullptr : &ahead[at]);
    }
    if (mixing && ahead.empty()) mix(replicas, mixing->at(step - 1));
    if (step % kPeriod != 0 && step != kSteps) continue;
    std::vector<Values> before;
    for (const Replica& r : replicas) before.push_back(test::values_of(*r.chain));
    average(replicas, averages_state(run));
    const Values mean = test::values_of(*replicas.front().chain);
    double squares = 0;
    for (const Values& of : before) {
      for (const auto& [name, value] : of) {
        squares += (value - mean.at(name)).square().sum().item<double>();
      }
    }
    out.squares.push_back(squares);
    if (has_outer) outer.step(replicas);
    out.values.push_back(test::values_of(*replicas.front().chain));
  }
  return out;
}

/// Of one problem. The replicas have unequal shares of 13 or more rows.
void expect_oracle(const Way& way, const Problem& problem,
                   const std::vector<parallel::Pass>& passes = {}) {
  PlanRun run = run_of(way, problem, {});
  run.plan = parallel::compose(run.plan, passes).take_or_throw();
  const int parts = data_part(run.plan.mesh, 0).parts;
  run.batches = problem.batches(kSteps, 6 * parts + 1);
  // so large an epsilon that it divides by no small numbers
  run.options.optimizer = {
      .kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01, .weight_decay = 0.1, .epsilon = 1e-2};
  const Oracle oracle = train_alone(run);
  const bool meet = mix_of(run) != nullptr && parts <= 3;  // in each step all of them
  ASSERT_TRUE(oracle.squares.front() > 1e-6 || meet) << "replicas do not diverge";
  std::vector<std::vector<double>> squares(static_cast<std::size_t>(run.ranks()));
  std::vector<Values> values(static_cast<std::size_t>(run.ranks()));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    std::size_t averages = 0;
    for (int step = 1; step <= kSteps; ++step) {
      rank.at = {.number = step, .closes = step == kSteps};
      rank.steps(1);
      if (step % kPeriod != 0 && step != kSteps) continue;
      const auto r = static_cast<std::size_t>(rank.rank());
      values[r] = rank.values();
      test::expect_near(values[r], oracle.values[averages++], 1e-10, problem.name);
      squares[r].push_back(rank.store().consensus_squares());
    }
    throw_if_error(rank.groups.world().barrier());  // then nobody needs this rank's groups
  });
  // what several ranks of a replica have stays equal: the order of additions is that of replicas
  for (const Values& of_rank : values) test::expect_near(of_rank, values[0], 0, problem.name);
  for (std::size_t i = 0; i < oracle.squares.size() && !meet; ++i) {
    double sum = 0;  // what several ranks have counts once
    for (const std::vector<double>& of_rank : squares) sum += of_rank.at(i);
    EXPECT_NEAR(sum / oracle.squares[i], 1, 1e-8) << problem.name << ", average " << i;
  }
}

TEST_P(AveragedParts, AreTheAveragesOfReplicasThatTrainByThemselves) {
  Way way = GetParam();
  way.strategy.period = kPeriod;
  for (const Problem& problem : problems(way)) expect_oracle(way, problem);
}

// Whole replicas, and ones that are cut: each part mixes with its neighbours.
TEST(MixedReplicas, AreThoseThatMixInOneProcess) {
  const std::vector<Way> ways = {
      cut("two", {2}, {}),
      cut("five", {5}, {}),
      cut("on_hosts", {2, 1, 1}, {}),
      cut("stages", {8}, {.pipeline = 2}, {.micro_batches = 2}),
      cut("stages_on_hosts", {2, 2, 2, 2}, {.pipeline = 2}, {.micro_batches = 2}),
      cut("three_of_slices", {6}, {.tensor = 2}, {.clip = true}),
      cut("four_of_slices", {8}, {.tensor = 2})};
  for (Way way : ways) {
    SCOPED_TRACE(way.name);
    way.strategy.period = kPeriod;
    for (const Problem& problem : {test::gpt_problem(true), test::mlp_problem()}) {
      expect_oracle(way, problem, {parallel::mix()});
    }
  }
}

// Decentralised SGD with the optimizer of each rank: what it sends is what the step begins with.
// The rounds of a topology go on from average to average.
TEST(GossipingReplicas, AreThoseThatMixInOneProcess) {
  const std::vector<std::pair<Way, std::string>> ways = {
      {cut("two", {2}, {}), "ring"},
      {cut("eight", {8}, {}), "one_peer_exponential"},
      {cut("on_hosts", {2, 2, 1}, {}), "exponential"},
      {cut("star", {4}, {}), "edges:0-1,0-2,0-3"},
      {cut("stages", {8}, {.pipeline = 2}, {.micro_batches = 2}), "hypercube"},
      {cut("stages_on_hosts", {2, 2, 2}, {.pipeline = 2}, {.micro_batches = 2}), "exponential"},
      {cut("of_slices", {8}, {.tensor = 2}, {.clip = true}), "torus"}};
  for (auto [way, topology] : ways) {
    SCOPED_TRACE(way.name);
    way.strategy.kind = Strategy::Kind::kGossip;
    way.strategy.topology = topology;
    way.strategy.period = kPeriod;
    for (const Problem& problem : {test::gpt_problem(true), test::mlp_problem()}) {
      expect_oracle(way, problem);
    }
  }
}

constexpr parallel::OuterOptimizer kNesterov{parallel::OuterOptimizer::Kind::kNesterov, 0.7, 0.9};
constexpr parallel::OuterOptimizer kSlowMo{parallel::OuterOptimizer::Kind::kSlowMo, 0.9, 0.6};

// Whole replicas, and ones that are cut, with the state of AdamW on each of them.
TEST(OuterUpdates, AreThoseOfOneProcess) {
  for (const parallel::OuterOptimizer& outer : {kNesterov, kSlowMo}) {
    const std::vector<Way> ways = {
        cut("three", {3}, {.outer = outer}), cut("on_hosts", {2, 1, 1}, {.outer = outer}),
        cut("stages_on_hosts", {2, 2}, {.outer = outer, .pipeline = 2}, {.micro_batches = 2}),
        cut("slices", {6}, {.outer = outer, .tensor = 2}, {.clip = true})};
    for (Way way : ways) {
      SCOPED_TRACE(way.name);
      way.strategy.period = kPeriod;
      for (const Problem& problem : {test::gpt_problem(true), test::mlp_problem()}) {
        expect_oracle(way, problem);
      }
    }
  }
}

// With AdamW an average of the state would be two more arrays.
TEST(OuterUpdates, SendTheParametersAndAWeight) {
  for (Way way :
       {cut("hosts", {1, 1}, {.outer = kNesterov}),
        cut("stages", {1, 1, 1, 1}, {.outer = kSlowMo, .pipeline = 2}, {.micro_batches = 2})}) {
    SCOPED_TRACE(way.name);
    way.strategy.period = 1;
    PlanRun run = run_of(way, test::mlp_problem(), {});
    constexpr int kMany = 20;  // the first steps also send shapes
    run.batches = run.problem.batches(kMany, 8);
    const std::vector<test::PlanResult> ranks = test::train_by_plan(run);
    analysis::StepSizes sizes{.averaged_slots = 2};
    sizes.samples = 4 / way.step.micro_batches;
    sizes.outputs = test::output_bytes(run.problem, sizes.samples);
    const analysis::StepCost cost = test::predicted_cost(run, sizes);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      test::expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), kMany);
      EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts));
    }
    if (way.strategy.pipeline > 1) continue;
    // of two ranks: each sends half of the parameters and gets the sum of the other half
    const auto elements = num_elements(run.plan.model);
    EXPECT_LT(cost.total().between_hosts, 2 * 8 * (elements + 4));
    EXPECT_GE(cost.total().between_hosts, 2 * 8 * elements);
  }
}

TEST(MixedReplicas, SendWhatThePlanSays) {
  Way way = cut("hosts", {1, 1, 1, 1}, {});
  way.strategy.period = 1;
  PlanRun run = test::sgd_run(way, test::mlp_problem(), {});
  run.plan = parallel::compose(run.plan, parallel::mix()).take_or_throw();
  run.batches = run.problem.batches(2, 8);
  const std::vector<test::PlanResult> ranks = test::train_by_plan(run);
  const analysis::StepCost cost = test::predicted_cost(run, {.averaged_slots = 1});
  const std::int64_t mixed = 2 * 8 * num_elements(run.plan.model);  // float64, to two neighbours
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    test::expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), 2);
    EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts));
    EXPECT_GT(cost.ranks[r].between_hosts, mixed);
  }
  EXPECT_FALSE(parallel::compose(parallel::one_device(run.plan.model), parallel::mix()).ok());
}

TEST(GossipingReplicas, SendWhatThePlanSays) {
  for (const char* topology : {"ring", "one_peer_exponential", "edges:0-1,0-2,0-3"}) {
    SCOPED_TRACE(topology);
    Way way = cut("hosts", {1, 1, 1, 1}, {});
    way.strategy.kind = Strategy::Kind::kGossip;
    way.strategy.topology = topology;
    way.strategy.gradient_tracking = true;
    constexpr int kMany = 2;
    PlanRun run = test::sgd_run(way, test::mlp_problem(), {});
    run.batches = run.problem.batches(kMany, 8);
    const std::vector<test::PlanResult> ranks = test::train_by_plan(run);
    const analysis::StepCost cost = test::predicted_cost(run, {.averaged_slots = 1});
    const std::int64_t parameters = 8 * num_elements(run.plan.model);  // float64
    const plan::Mixing mixing = plan::mixing_of(topology, 4).take_or_throw();
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      test::expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), kMany);
      const auto degree = std::ssize(receivers_of(mixing.at(0), static_cast<Rank>(r)));
      EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts)) << r;
      // parameters and estimates, besides the average
      EXPECT_GT(cost.ranks[r].between_hosts, 2 * degree * parameters) << r;
      EXPECT_LT(cost.ranks[r].between_hosts, (2 * degree + 2) * parameters) << r;
    }
  }
}

// Slices of 3 units are unequal, so the second bias lies elsewhere in the buffer of each rank.
// Large buffers between hosts are added in an order that depends on that, unless one is asked for.
TEST(AveragedPartsOfUnequalSlices, StayEqualWhereRanksHaveTheSame) {
  Problem wide = test::mlp_problem();
  wide.build = [] {
    return std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 3, 3000, 5});
  };
  Way way = cut("slices", {2, 2, 2}, {.tensor = 2});
  way.strategy.period = kPeriod;
  expect_oracle(way, wide);
}

INSTANTIATE_TEST_SUITE_P(Ways, AveragedParts, testing::ValuesIn(ways()),
                         [](const auto& test) { return test.param.name; });

std::string refused(Strategy strategy, std::vector<int> hosts) {
  strategy.kind = Strategy::Kind::kParameterAveraging;
  return parallel::plan_for(strategy, test::gpt_problem().model(3)->split_shape(),
                            {.ranks_per_host = std::move(hosts)}, {.micro_batches = 2})
      .status()
      .message();
}

TEST(AveragedPartsRefusal, NamesAllThatCannotBeAveraged) {
  EXPECT_EQ(refused({.pipeline = 2}, {4}), "");
  EXPECT_EQ(refused({.pipeline = 2, .context = 2, .schedule = "pipedream"}, {4, 3, 1}),
            "strategy 'parameter_averaging' averages no gradients, which ranks with parts of the "
            "positions have to: leave out context, or use 'ddp'; averages after whole steps, and "
            "those of schedule 'pipedream' overlap: leave out schedule, or use 'ddp'; has replicas "
            "of 4 ranks that lie on hosts in different ways, so that copies of one part would be "
            "added up in different orders: start a multiple of 4 ranks on each host");
  EXPECT_EQ(refused({.pipeline = 2, .tensor = 2}, {2, 2}), "") << "two hosts are a replica";
  EXPECT_EQ(refused({.tensor = 2}, {3, 3}),
            "strategy 'parameter_averaging' has replicas of 2 ranks that lie on hosts in different "
            "ways, so that copies of one part would be added up in different orders: start a "
            "multiple of 2 ranks on each host");
}

}  // namespace
}  // namespace stormo::train
