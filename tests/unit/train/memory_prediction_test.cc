// The memory that analysis::memory() predicts for a plan is what tensors take on each rank while it
// runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/estimate/step_sizes.h>

#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/toy.h"

namespace stormo::train {
namespace {

using parallel::Pass;
using test::PlanRank;
using test::PlanRun;
using test::Problem;

/// What this thread's tensors hold, and the most that they have held.
class HeldBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    held_ += size;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  void restart() { peak_ = held_; }
  std::int64_t held() const { return held_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t held_ = 0, peak_ = 0;
};

struct Held {
  std::int64_t between_steps = 0;
  std::int64_t peak = 0;
};

/// Of the rank that holds the most, in the third step.
Held measured(const PlanRun& run) {
  std::vector<Held> held(static_cast<std::size_t>(run.ranks()));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const auto tensors = std::make_shared<HeldBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, tensors);
    for (torch::Tensor& p : rank.chain->parameters())
      p.set_data(p.clone());  // counted from here on
    rank.steps(2);
    tensors->restart();
    held[static_cast<std::size_t>(rank.rank())].between_steps = tensors->held();
    rank.steps(1);
    held[static_cast<std::size_t>(rank.rank())].peak = tensors->peak();
    rank.end();
    throw_if_error(rank.groups.world().barrier());  // other stages may still compute
  });
  return *std::ranges::max_element(held, {}, &Held::peak);
}

/// Of a step of `rows` rows on one rank, of `tensor` that compute layers together.
StepMeasurement measurement(const Problem& problem, std::int64_t rows, int tensor,
                            bool sequence_parallel) {
  const auto chain = problem.model(3);
  Task task;
  task.module = chain;
  task.forward = [chain](const torch::Tensor& x) { return chain->forward(x); };
  task.loss = model::cross_entropy;
  task.shape = chain->shape();
  task.split_loss = [classes = test::classes_of(*chain)](const auto& part, const auto& target,
                                                         const auto& ranks) {
    return model::split_cross_entropy(part, target, classes, &ranks);
  };
  const test::Batch batch = problem.batches(1, rows).front();
  const test::RowsDataset data(batch.x, batch.target);
  TrainerOptions options;
  options.strategy.tensor = tensor;
  options.strategy.sequence_parallel = sequence_parallel;
  return measure_step(task, data, options, rows).take_or_throw();
}

struct Way {
  std::string name;
  std::vector<Pass> passes;
};

std::vector<Way> ways() {
  return {
      {"one device", {}},
      {"micro-batches", {parallel::micro_batches(4)}},
      {"recompute", {parallel::recompute()}},
      {"mirrored", {parallel::mirrored(2)}},
      {"stage 1", {parallel::sharded({.stage = 1, .ranks = 2})}},
      {"stage 2", {parallel::sharded({.stage = 2, .ranks = 2})}},
      {"stage 3", {parallel::sharded({.stage = 3, .ranks = 2})}},
      {"stage 3 of 4", {parallel::sharded({.stage = 3, .ranks = 4})}},
      {"stage 3, recompute", {parallel::sharded({.stage = 3, .ranks = 2}), parallel::recompute()}},
      {"pipeline", {parallel::micro_batches(4), parallel::pipeline({})}},
      {"pipeline, gpipe",
       {parallel::micro_batches(4), parallel::pipeline({.schedule = parallel::gpipe()})}},
      {"pipeline of 3, replicas",
       {parallel::micro_batches(4), parallel::pipeline({.stages = 3}), parallel::mirrored(2)}},
      {"tensor", {parallel::tensor_parallel(2)}},
      {"tensor of 4, recompute", {parallel::tensor_parallel(4), parallel::recompute()}},
      {"tensor in stages, replicas",
       {parallel::micro_batches(4), parallel::pipeline({}), parallel::tensor_parallel(2),
        parallel::mirrored(2)}},
      {"stage 1 of a pipeline",
       {parallel::micro_batches(4), parallel::pipeline({}),
        parallel::sharded({.stage = 1, .ranks = 2})}},
      {"stage 3 of a pipeline",
       {parallel::micro_batches(4), parallel::pipeline({}),
        parallel::sharded({.stage = 3, .ranks = 2})}}};
}

PlanRun run_of(const Way& way, const Problem& problem, std::int64_t rows) {
  const plan::StepPlan plan =
      parallel::compose(parallel::one_device(problem.model(3)->split_shape()), way.passes)
          .take_or_throw();
  PlanRun run{.plan = plan,
              .hosts = {plan.mesh.size()},
              .problem = problem,
              .batches = problem.batches(3, rows),
              .options = {}};
  run.options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.001};
  if (plan.mesh.find("shard") >= 0) {
    run.options.strategy = {.kind = Strategy::Kind::kFsdp,
                            .parameters = Strategy::Parameters::kSharded};
    run.options.strategy.stage = plan.strategy.back() - '0';
  }
  return run;
}

void expect_within(const std::string& what, std::int64_t predicted, std::int64_t measured,
                   double most) {
  const double ratio = static_cast<double>(predicted) / static_cast<double>(measured);
  std::printf("%-40s predicted %8lld KiB, measured %8lld KiB: %.3f\n", what.c_str(),
              static_cast<long long>(predicted / 1024), static_cast<long long>(measured / 1024),
              ratio);
  EXPECT_NEAR(ratio, 1, most) << what;
}

TEST(MemoryPrediction, OfModelState) {
  const Problem wide = {
      "mlp",
      [] {
        return std::make_shared<model::Mlp>(std::vector<std::int64_t>{300, 400, 400, 400, 10});
      },
      [](std::int64_t rows) {
        return test::Batch{torch::randn({rows, 300}), torch::randint(10, {rows})};
      },
      torch::kFloat32};
  for (const Way& way : ways()) {
    const PlanRun run = run_of(way, wide, 8);
    const analysis::StepMemory memory = analysis::memory(run.plan, memory_sizes_of(run.options));
    const Held held = measured(run);
    expect_within(way.name + ", between steps", memory.between_steps.total(), held.between_steps,
                  0.05);
    expect_within(way.name + ", at the peak", memory.peak.total(), held.peak, 0.05);
  }
}

TEST(MemoryPrediction, WithActivations) {
  const Problem gpt = {
      "gpt",
      [] {
        return std::make_shared<model::Gpt>(model::GptOptions{
            .vocabulary = 65, .context = 32, .layers = 4, .heads = 4, .width = 64});
      },
      [](std::int64_t rows) {
        return test::Batch{torch::randint(65, {rows, 32}), torch::randint(65, {rows, 32})};
      },
      torch::kFloat32};
  constexpr std::int64_t kRows = 16;
  // by rows, tensor and sequence_parallel
  std::map<std::tuple<std::int64_t, int, bool>, StepMeasurement> measurements;
  std::vector<Way> all = ways();
  all.push_back(
      {"tensor, positions, recompute",
       {parallel::tensor_parallel(2), parallel::sequence_parallel(), parallel::recompute()}});
  all.push_back(
      {"tensor of 4, positions", {parallel::tensor_parallel(4), parallel::sequence_parallel()}});
  for (const Way& way : all) {
    const PlanRun run = run_of(way, gpt, kRows);
    const std::int64_t rows = kRows / data_part(run.plan.mesh, 0).parts / run.plan.micro_batches;
    const int tensor = slice_of(run.plan.mesh, 0).parts;
    const std::tuple key(rows, tensor, run.plan.sequence_parallel);
    if (!measurements.contains(key)) {
      measurements[key] = measurement(gpt, rows, tensor, run.plan.sequence_parallel);
    }
    analysis::MemorySizes sizes = memory_sizes_of(run.options);
    sizes.activations = measurements[key].activations;
    sizes.outputs = measurements[key].outputs;
    expect_within(way.name, analysis::memory(run.plan, sizes).peak.total(), measured(run).peak,
                  0.10);
  }
  const auto of_block = [&](bool sequence_parallel) {
    return measurements.at({kRows, 4, sequence_parallel}).activations[1];
  };
  std::printf("activations of a block on 4 ranks: %lld bytes, with positions in parts %lld\n",
              static_cast<long long>(of_block(false)), static_cast<long long>(of_block(true)));
  EXPECT_LT(of_block(true), of_block(false));
}

/// Of 16 samples of a Gpt whose head reads the table of its embedding.
StepMeasurement measurement_of(const std::shared_ptr<model::Gpt>& gpt, const Strategy& strategy,
                               std::int64_t memory) {
  Task task;
  task.module = gpt;
  task.forward = [gpt](const torch::Tensor& x) { return gpt->forward(x); };
  task.loss = model::cross_entropy;
  task.split_loss = [](const auto& part, const auto& target, const auto& ranks) {
    return model::split_cross_entropy(part, target, 65, &ranks);
  };
  torch::manual_seed(1);
  const test::RowsDataset data(torch::randint(65, {16, 32}), torch::randint(65, {16, 32}));
  TrainerOptions options;
  options.strategy = strategy;
  return measure_step(task, data, options, 16, {.in_parts = true, .memory = memory})
      .take_or_throw();
}

TEST(MeasureStep, APieceAtATimeTakesWhatTheWholeTakes) {
  const auto without_values = [] {
    const model::ValuesLater later;
    return std::make_shared<model::Gpt>(
        model::GptOptions{.vocabulary = 65, .context = 32, .layers = 3, .heads = 4, .width = 64});
  };
  Strategy tensor, positions, context;
  tensor.tensor = positions.tensor = 2;
  positions.sequence_parallel = true;
  context.context = 2;
  for (const Strategy& s : {Strategy(), tensor, positions, context}) {
    const auto whole = without_values(), cut = without_values();
    const StepMeasurement a = measurement_of(whole, s, INT64_MAX), b = measurement_of(cut, s, 1);
    EXPECT_FALSE(whole->lacks_values());
    for (const torch::Tensor& p : cut->parameters()) {
      EXPECT_FALSE(tensor::has_memory(p));
      EXPECT_FALSE(p.grad().defined());
    }
    EXPECT_EQ(a.activations, b.activations);
    EXPECT_EQ(a.outputs, b.outputs);
    for (const auto times :
         {&analysis::ComputeTimes::forward, &analysis::ComputeTimes::backward,
          &analysis::ComputeTimes::backward_input, &analysis::ComputeTimes::backward_weight}) {
      EXPECT_EQ((b.times.*times).size(), 5u);
      EXPECT_THAT(std::span(b.times.*times).subspan(1), ::testing::Each(::testing::Gt(0)));
    }
    EXPECT_GT(b.times.loss, 0);
    EXPECT_GT(b.times.update, 0);
  }
}

}  // namespace
}  // namespace stormo::train
