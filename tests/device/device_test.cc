// Training on a device whose memory the host may not read: it is what training on the CPU is, and
// the host reads what it has to.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/step/layout.h>

#include "tests/device/stub_device.h"
#include "tests/unit/train/plan_pairs.h"

namespace stormo::test {
namespace {

using train::OptimizerOptions;

torch::Device device_of_rank(Rank rank) { return stub_device(rank); }

bool is_shared(const StepPlan& plan) { return plan.mesh.find("host") >= 0; }

std::vector<Pair> pairs_on_devices() {
  std::vector<Pair> out = pairs();
  std::erase_if(out, [](const Pair& pair) { return is_shared(pair.plan); });
  return out;
}

// --- the device --------------------------------------------------------------------------------

TEST(StubDevice, TheHostFaultsWhereItReads) {
  const torch::Tensor t =
      torch::ones({3}, torch::TensorOptions(torch::kFloat64).device(stub_device(1)));
  EXPECT_EQ(t.device().index(), 1);
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile double*>(t.const_data_ptr())), "");
  const std::int64_t before = stub_reads();
  EXPECT_EQ(t.sum().item<double>(), 3);
  EXPECT_TRUE(t.cpu().equal(torch::ones({3}, torch::kFloat64)));
  EXPECT_EQ(stub_reads(), before + 2);
}

TEST(StubDevice, GradientsAreThoseOfTheCpu) {
  const auto gradient = [](torch::Device device) {
    torch::manual_seed(1);
    torch::nn::Linear linear(7, 5);
    linear->to(torch::kFloat64);
    const torch::Tensor x = torch::randn({4, 7}, torch::kFloat64);
    const torch::Tensor target = torch::randint(5, {4});
    linear->to(device);
    torch::nll_loss(torch::log_softmax(linear(x.to(device)).tanh(), 1), target.to(device))
        .backward();
    return linear->weight.grad().cpu();
  };
  EXPECT_TRUE(gradient(stub_device(0)).equal(gradient(torch::kCPU)));
}

// --- plans -------------------------------------------------------------------------------------

class RunnerOnDevices : public ::testing::TestWithParam<Pair> {};

TEST_P(RunnerOnDevices, DoesWhatIsWrittenAndTrainsAlike) {
  expect_trains_alike(GetParam(), device_of_rank);
}

INSTANTIATE_TEST_SUITE_P(ByHand, RunnerOnDevices, ::testing::ValuesIn(pairs_on_devices()),
                         [](const auto& test) { return test.param.name; });

// What a plan's loss scale multiplies, its update divides again.
TEST(RunnerOnDevices, ScalesTheLoss) {
  PlanRun run = run_by_hand(
      written("dp=2",
              "load\nforward 0-2\nloss\nbackward 0-2\nall_reduce 0-5 over dp\nnorm\nunscale\n"
              "update 0-5\nagree",
              "micro_batches=1 scaled_loss"));
  run.device = device_of_rank;
  const auto scaled = train_by_plan(run);
  const auto alone = train_by_plan(run_by_hand(plain(1)));
  for (const PlanResult& rank : scaled) {
    expect_near(rank.values, alone[0].values, 1e-12, "one process");
  }
}

/// As make_store's passes give it, of mlp_problem() on two ranks.
StepPlan planned(const train::Strategy& strategy, const parallel::StepOptions& options = {}) {
  return parallel::plan_for(strategy, mlp_problem().model(3)->shape(),
                            {.ranks_per_host = {2}, .can_share = false}, options)
      .take_or_throw();
}

TEST(RunnerOnDevices, TrainsInShardsOfEveryStage) {
  using enum train::Strategy::Parameters;
  const auto alone = train_by_plan(run_by_hand(plain(1)));
  for (const int stage : {1, 2, 3}) {
    for (const bool clips : {false, true}) {
      train::Strategy strategy{.kind = train::Strategy::Kind::kFsdp};
      strategy.parameters = kSharded;
      strategy.stage = stage;
      const StepPlan plan = planned(strategy, {.micro_batches = 2, .clip = clips, .prefetch = 1});
      PlanRun run = run_by_hand(plan, clips ? 1e9 : 0);
      run.device = device_of_rank;
      for (const PlanResult& rank : train_by_plan(run)) {
        expect_near(rank.values, alone[0].values, 1e-12, "one process");
      }
    }
  }
}

void expect_refused(const StepPlan& plan, const std::string& why) {
  PlanRun run = run_by_hand(plan);
  run.device = device_of_rank;
  on_plan_ranks(run, [&why](PlanRank& rank) {
    try {
      rank.store();
      ADD_FAILURE() << "no refusal";
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code(), Code::kInvalidArgument);
      EXPECT_NE(e.status().message().find(why), std::string::npos) << e.status().message();
    }
  });
}

TEST(RunnerOnDevices, OneCopyPerHostIsRefused) {
  for (const Pair& pair : pairs()) {
    if (is_shared(pair.plan)) expect_refused(pair.plan, "one copy per host lies in memory");
  }
}

TEST(RunnerOnDevices, StagesSlicesAndPartsOfPositionsAreRefused) {
  const std::string why = "ranks with parts of a model or of samples send tensors in host memory";
  expect_refused(planned({.pipeline = 2}, {.micro_batches = 2}), why);
  for (const auto axis : {plan::kStageAxis, plan::kTensorAxis, plan::kContextAxis}) {
    StepPlan plan = plain(2);
    plan.mesh.axes.front().name = axis;
    const Status refused = train::check_device(plan, stub_device(0));
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << axis;
    EXPECT_NE(refused.message().find(why), std::string::npos) << refused.message();
    EXPECT_TRUE(train::check_device(plan, torch::kCPU).ok()) << axis;
  }
}

// --- what the host reads -----------------------------------------------------------------------

/// How often the host has read when an action is done, since the step began; of the last step.
std::vector<std::pair<std::string, std::int64_t>> reads_of_step(const StepPlan& plan,
                                                                double clip_norm = 0) {
  PlanRun run = run_by_hand(plan, clip_norm);
  run.device = device_of_rank;
  std::vector<std::pair<std::string, std::int64_t>> out;
  on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(1);
    const std::int64_t before = stub_reads();
    rank.done = [&](const plan::Action& a) { out.emplace_back(to_text(a), stub_reads() - before); };
    rank.steps(1);
    EXPECT_EQ(stub_reads() - before, out.back().second) << "behind the last action";
  });
  return out;
}

TEST(HostReads, TheLossesOfAllMicroBatchesAreReadAtOnceBeforeTheRanksAgree) {
  const std::string passes =
      "load\nforward 0-2\nloss\nforward 0-2 batch 1\nloss batch 1\nbackward 0-2\n"
      "backward 0-2 batch 1\n";
  for (const auto& [action, reads] :
       reads_of_step(written("dp=1", passes + "update 0-5\nagree", "micro_batches=2"))) {
    EXPECT_EQ(reads, action == "agree" ? 1 : 0) << action;
  }
}

TEST(HostReads, ClippingReadsOneNorm) {
  for (const auto& [action, reads] : reads_of_step(
           written("dp=1", "load\nforward 0-2\nloss\nbackward 0-2\nnorm\nclip\nupdate 0-5\nagree",
                   "micro_batches=1 clipped"),
           0.1)) {
    const bool before = action == "load" || action.starts_with("forward") || action == "loss" ||
                        action.starts_with("backward");
    EXPECT_EQ(reads, before ? 0 : action == "agree" ? 2 : 1) << action;
  }
}

// --- the clock ---------------------------------------------------------------------------------

// The host enqueues; what counts is when the device gets there.
TEST(LanesOfADevice, ComputingTakesTheTimeOfTheDevice) {
  PlanRun run = run_by_hand(plain(1));
  run.device = device_of_rank;
  struct Times final : Sink {
    void record(const Event& e) override {
      if (e.lane == Lane::kCompute)
        seconds += std::chrono::duration<double>(e.end - e.start).count();
    }
    double seconds = 0;
  } times;
  on_plan_ranks(run, [&](PlanRank& rank) {
    rank.runner();
    std::vector<std::int64_t> operations;
    rank.pass_events_to(&times);
    rank.done = [&](const plan::Action& a) {
      if (a.kind == plan::ActionKind::kLoad || a.kind == plan::ActionKind::kUpdate) {
        operations.push_back(stub_operations(0));
      }
    };
    rank.steps(1);
    ASSERT_EQ(operations.size(), 2u);
    const auto ms = static_cast<double>((operations[1] - operations[0]) * kStubOperationMs);
    EXPECT_GT(ms, 20);
    EXPECT_NEAR(times.seconds * 1e3, ms, 1e-3);
  });
}

// --- optimizers --------------------------------------------------------------------------------

struct Rule {
  std::string name;
  OptimizerOptions options;
};

std::vector<Rule> rules() {
  using enum OptimizerOptions::Kind;
  return {
      {"Sgd", {.kind = kSgd, .lr = 0.1, .weight_decay = 0.01}},
      {"Momentum", {.kind = kSgd, .lr = 0.1, .momentum = 0.9}},
      {"Nesterov", {.kind = kSgd, .lr = 0.1, .momentum = 0.9, .nesterov = true}},
      {"AdamW", {.kind = kAdamW, .lr = 0.1, .weight_decay = 0.01}},
      {"Adam", {.kind = kAdam, .lr = 0.1, .weight_decay = 0.01}},
      {"Adagrad", {.kind = kAdagrad, .lr = 0.1, .weight_decay = 0.01}},
      {"RmsProp", {.kind = kRmsProp, .lr = 0.1, .weight_decay = 0.01}},
      {"RmsPropWithMomentum", {.kind = kRmsProp, .lr = 0.1, .momentum = 0.9}},
      {"Lion", {.kind = kLion, .lr = 0.1, .weight_decay = 0.01}},
      {"Lars", {.kind = kLars, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}},
      {"Lamb", {.kind = kLamb, .lr = 0.1, .weight_decay = 0.01}},
  };
}

/// The weights after some steps, and the state.
std::map<std::string, torch::Tensor> optimized(
    const OptimizerOptions& options, torch::Device device, torch::ScalarType type,
    const std::map<std::string, torch::Tensor>& from = {}) {
  torch::manual_seed(5);
  std::vector<train::NamedParameter> parameters;
  for (const std::int64_t rows : {3, 1}) {
    torch::Tensor t = torch::randn({rows, 7}, torch::kFloat64).to(type).to(device);
    parameters.push_back({"p" + std::to_string(rows), t.requires_grad_()});
  }
  train::FusedOptimizer optimizer(options, parameters);
  if (!from.empty()) throw_if_error(optimizer.load_state(from));
  std::map<std::string, torch::Tensor> out;
  for (int step = 0; step < 3; ++step) {
    for (const train::NamedParameter& p : parameters) {
      p.tensor.mutable_grad() = torch::randn(p.tensor.sizes(), torch::kFloat64).to(type).to(device);
    }
    out["norm" + std::to_string(step)] =
        torch::tensor({optimizer.gradient_norm().take_or_throw()}, torch::kFloat64);
    throw_if_error(optimizer.step({.lr = 0.1, .gradient_scale = 0.5}, 0, 2));
  }
  for (const auto& [name, t] : optimizer.state()) out[name] = t.cpu();
  for (const train::NamedParameter& p : parameters) out[p.name] = p.tensor.detach().cpu();
  return out;
}

void expect_close(const std::map<std::string, torch::Tensor>& a,
                  const std::map<std::string, torch::Tensor>& b, double most) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, t] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    EXPECT_EQ(t.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_LE((t - b.at(name)).abs().max().item<double>(), most) << name;
  }
}

class RulesOnADevice : public ::testing::TestWithParam<Rule> {};

TEST_P(RulesOnADevice, UpdateAndSaveAsOnTheCpu) {
  const OptimizerOptions& options = GetParam().options;
  const auto on_cpu = optimized(options, torch::kCPU, torch::kFloat64);
  const auto on_device = optimized(options, stub_device(0), torch::kFloat64);
  expect_close(on_cpu, on_device, 1e-12);
  std::map<std::string, torch::Tensor> state;
  for (const auto& [name, t] : on_device) {
    if (name.starts_with("optimizer.")) state.emplace(name, t);
  }
  if (state.empty()) return;
  expect_close(optimized(options, torch::kCPU, torch::kFloat64, state),
               optimized(options, stub_device(0), torch::kFloat64, state), 1e-12);
}

TEST_P(RulesOnADevice, KeepMastersOf16Bits) {
  const OptimizerOptions& options = GetParam().options;
  expect_close(optimized(options, torch::kCPU, torch::kBFloat16),
               optimized(options, stub_device(0), torch::kBFloat16), 2e-2);
}

INSTANTIATE_TEST_SUITE_P(AllRules, RulesOnADevice, ::testing::ValuesIn(rules()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stormo::test
