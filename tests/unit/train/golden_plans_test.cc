// The plans in tests/golden are what the passes make of real models, and each of them trains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/servers/elastic_averaging.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/train/estimate/step_sizes.h>

#include "tests/built.h"
#include "tests/golden/golden.h"
#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/predicted_cost.h"

namespace stormo::train {
namespace {

using plan::StepPlan;
using test::PlanRun;
using test::Problem;

namespace fs = std::filesystem;

/// Whose plans there are; the second has a parameter that two segments read.
std::vector<Problem> models() {
  std::vector<Problem> out = {test::mlp_problem(), test::gpt_problem()};
  for (Problem& problem : out) problem.type = torch::kFloat32;
  return out;
}

StepPlan made_by(const std::vector<parallel::Pass>& passes, std::size_t model = 0) {
  return parallel::compose(parallel::one_device(models()[model].model(3)->shape()), passes)
      .take_or_throw();
}

/// With what a plan says where ranks compute layers together.
plan::ModelShape split_shape(const Problem& problem) {
  return without_unused_forms(problem.model(3)->split_shape(),
                              {.slices = true, .positions = true, .places = true});
}

/// Of a gpt that is cut inside of its layers.
StepPlan of_slices(const std::vector<parallel::Pass>& passes) {
  return parallel::compose(parallel::one_device(split_shape(models()[1])), passes).take_or_throw();
}

/// By the name of their file, step_plan_NAME.txt.
std::map<std::string, StepPlan> golden_plans() {
  using namespace parallel;
  return {
      {"one_device", made_by({})},
      {"mirrored", made_by({mirrored(4)})},
      {"buckets", made_by({mirrored(2), bucket(1000)})},
      {"bfloat16",
       made_by({mirrored(2), bucket(1000),
                reduce_with({.codec = Codec::kBFloat16, .all_reduce = "ring_all_reduce"})})},
      {"recompute", made_by({mirrored(2), recompute()}, 1)},
      {"micro_batches_clip", made_by({micro_batches(2), parallel::clip_gradients(), mirrored(2)})},
      {"loss_scale", made_by({scale_loss(), mirrored(2)})},
      {"host_shared", made_by({host_shared(1, 2)})},
      {"host_shared_on_hosts", made_by({host_shared(2, 2)})},
      {"parameter_server", made_by({parameter_server(3)})},
      {"worker_ranks", made_by({parameter_server(2, {}, 2)})},
      {"parameter_averaging", made_by({parameter_averaging(3, 8)})},
      {"mix", made_by({parameter_averaging(4, 1), mix()})},
      {"elastic_averaging", made_by({elastic_averaging(3, 8)})},
      {"sharded1", made_by({sharded({.stage = 1, .ranks = 2})})},
      {"sharded2", made_by({sharded({.stage = 2, .ranks = 2})})},
      {"sharded3", made_by({sharded({.stage = 3, .ranks = 2})}, 1)},
      {"hybrid_prefetch", made_by({micro_batches(2), parallel::clip_gradients(), mirrored(2),
                                   sharded({.stage = 3, .ranks = 2, .prefetch = 1})})},
      {"slices_trust_ratios", of_slices({tensor_parallel(2), mirrored(2), trust_ratios()})},
      {"shards_of_slices_trust_ratios",
       of_slices({parallel::clip_gradients(), tensor_parallel(2), sharded({.stage = 1, .ranks = 2}),
                  trust_ratios()})},
  };
}

TEST(GoldenPlans, AreWhatThePassesMake) {
  for (const auto& [name, plan] : golden_plans()) {
    testing::expect_golden("step_plan_" + name + ".txt", to_text(plan));
  }
}

/// The ranks of "dp" are on hosts of their own. Workers that share the servers' memory are on one.
std::vector<int> hosts_of(const StepPlan& plan) {
  const int dp = plan.mesh.find("dp");
  const bool several = dp >= 0 && !has_servers(plan);
  const int hosts = several ? plan.mesh.axes[static_cast<std::size_t>(dp)].size : 1;
  return std::vector<int>(static_cast<std::size_t>(hosts), plan.mesh.size() / hosts);
}

PlanRun run_of(const StepPlan& plan, const Problem& problem) {
  PlanRun run{.plan = plan,
              .hosts = hosts_of(plan),
              .problem = problem,
              .batches = problem.batches(3, 13),
              .options = {},
              .half = plan.scaled_loss};
  run.options.optimizer = {.kind = OptimizerOptions::Kind::kSgd, .lr = 0.1, .momentum = 0.9};
  if (plan.strategy.ends_with("+trust_ratios")) {
    run.options.optimizer.kind = OptimizerOptions::Kind::kLars;
    run.options.optimizer.trust = 0.1;
  }
  run.options.clip_norm = plan.clipped ? 0.5 : 0;
  run.options.servers.policy.kind = protocol::PolicyOptions::Kind::kSync;
  return run;
}

/// The same on one rank, and nothing done in pieces.
PlanRun alone(const PlanRun& run) {
  std::vector<parallel::Pass> passes;
  if (run.plan.scaled_loss) passes.push_back(parallel::scale_loss());
  if (run.plan.clipped) passes.push_back(parallel::clip_gradients());
  PlanRun out = run;
  out.plan = parallel::compose(parallel::one_device(run.plan.model), passes).take_or_throw();
  out.hosts = {1};
  return out;
}

/// Reads the plan and trains by it.
void execute(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto plan = plan::parse_step_plan(text);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::vector<Problem> known = models();
  const auto problem = std::ranges::find_if(known, [&](const Problem& p) {
    return p.model(3)->shape() == plan->model || split_shape(p) == plan->model;
  });
  ASSERT_NE(problem, known.end()) << "no model here has these segments";
  const PlanRun run = run_of(*plan, *problem);
  const auto reference = test::train_by_plan(alone(run));
  const auto ranks = test::train_by_plan(run);
  const bool rounds = std::ranges::any_of(
      plan->actions, [](const plan::Action& a) { return a.codec != Codec::kNone; });
  const double rounding = run.half || rounds ? 1e-3 : 2e-6;
  // what is drawn to a centre or mixes with neighbours trains otherwise than one process; all ranks
  // show the centre, or the average
  const bool differs =
      has_centre(*plan) ||
      std::ranges::count(plan->actions, plan::ActionKind::kMix, &plan::Action::kind) > 0;
  const test::Values& expected = differs ? ranks[0].values : reference[0].values;
  analysis::StepSizes sizes = step_sizes_of(run.options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  const analysis::StepCost cost = test::predicted_cost(run, sizes);
  EXPECT_EQ(cost.total().between_hosts > 0, run.hosts.size() > 1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].sent[1], static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << "rank " << r;
    test::expect_trace(ranks[r].trace, project(*plan, static_cast<Rank>(r)), run.batches.size());
    test::expect_near(ranks[r].values, expected, rounding, "one process");
  }
  // training changes far more than that
  const test::Values before = test::values_of(*problem->model(3));
  for (const auto& [name, value] : reference[0].values) {
    EXPECT_GT((value - before.at(name)).abs().max().item<double>(), 4 * rounding) << name;
  }
}

/// As a plan with factors says it.
plan::ModelShape with_rows(const plan::ModelShape& model) {
  plan::ModelShape out =
      without_unused_forms(models()[0].model(3)->split_shape(), {.factors = true});
  EXPECT_EQ(without_unused_forms(out, {}), model);
  return out;
}

// What a codec saves is in what the ranks count, and in the cost, to the byte.
TEST(GoldenPlans, WithoutTheirCodecTheyCountMoreBytes) {
  const auto counted = [](Codec codec) {
    StepPlan plan = golden_plans().at("bfloat16");
    if (row_of(codec).has_factors()) plan.model = with_rows(plan.model);
    for (plan::Action& a : plan.actions) {
      a.codec = row_of(a.kind).reduces ? codec : a.codec;
      a.algorithm.clear();
    }
    const PlanRun run = run_of(plan, models()[0]);
    const auto ranks = test::train_by_plan(run);
    const analysis::StepCost cost = test::predicted_cost(run, {});
    std::vector<std::uint64_t> out;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      out.push_back(ranks[r].sent[1]);
      EXPECT_EQ(out[r], static_cast<std::uint64_t>(cost.ranks[r].between_hosts)) << "rank " << r;
    }
    return out;
  };
  const std::vector<std::uint64_t> without = counted(Codec::kNone);
  for (const CodecRow& row : codec_rows()) {
    if (row.codec == Codec::kNone) continue;
    const std::vector<std::uint64_t> with = counted(row.codec);
    for (std::size_t r = 0; r < with.size(); ++r) {
      EXPECT_LT(with[r], without[r]) << row.word << ", rank " << r;
    }
  }
}

TEST(GoldenPlans, AreExecutedAsTheyStand) {
  std::size_t executed = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(testing::repository() / "tests/golden")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step_plan_") || entry.path().extension() != ".txt") continue;
    SCOPED_TRACE(name);
    execute(entry.path());
    ++executed;
  }
  std::printf("%zu golden plans executed\n", executed);
  EXPECT_GT(executed, 0u);
}

}  // namespace
}  // namespace stormo::train
