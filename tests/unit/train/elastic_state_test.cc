// The state of a replica as slices: what a process gets that joins an elastic job.
#include <gtest/gtest.h>
#include <stormo/train/elastic/training_state.h>
#include <stormo/train/optimizer/optimizer.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

namespace stormo::train {
namespace {

struct Replica {
  torch::nn::Linear module;
  std::unique_ptr<Optimizer> optimizer;
};

Replica make(OptimizerOptions::Kind kind, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  Replica r{torch::nn::Linear(300, 500), nullptr};
  OptimizerOptions options;
  options.kind = kind;
  options.lr = 0.01;
  r.optimizer = make_optimizer(options, trainable_parameters(*r.module));
  return r;
}

void step(Replica& r, double gradient) {
  for (const torch::Tensor& p : r.module->parameters()) {
    p.mutable_grad() = torch::full_like(p, gradient);
  }
  ASSERT_TRUE(r.optimizer->step(0.01).ok());
}

void copy(const TrainingState& from, TrainingState& to, std::size_t slice) {
  std::vector<std::byte> bytes(from.bytes(slice));
  from.read(slice, bytes.data());
  to.write(slice, bytes.data());
}

// A part of the slices in each step, while both apply the gradients of all: as a newcomer does.
TEST(TrainingState, ArrivesSliceBySliceWhileStepsGoOn) {
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW,
                          OptimizerOptions::Kind::kLamb}) {
    Replica donor = make(kind, 1), newcomer = make(kind, 2);
    step(donor, 0.5);
    step(donor, -0.25);
    TrainingState has(*donor.optimizer), gets(*newcomer.optimizer);
    ASSERT_EQ(has.slices(), gets.slices());
    EXPECT_GE(has.slices(), 2u);
    gets.set_steps(has.steps());
    EXPECT_NE(has.hash(), gets.hash());
    for (std::size_t slice = 0; slice < has.slices(); ++slice) {
      copy(has, gets, slice);
      gets.finish();
      step(donor, 0.125 * static_cast<double>(slice + 1));
      step(newcomer, 0.125 * static_cast<double>(slice + 1));
    }
    EXPECT_EQ(has.hash(), gets.hash()) << static_cast<int>(kind);
  }
}

TEST(TrainingState, ASliceHasWeightsAndSlotsOfTheSameElements) {
  Replica adam = make(OptimizerOptions::Kind::kAdamW, 1);
  const TrainingState state(*adam.optimizer);
  // 600 KB of weights are 3 blocks; each slice has one of them, and those of two slots
  EXPECT_EQ(state.slices(), 4u);
  EXPECT_EQ(state.bytes(0), 3u * StateBlocks::kBytes);
  EXPECT_EQ(state.bytes(3), 3u * 500 * sizeof(float));
  Replica lamb = make(OptimizerOptions::Kind::kLamb, 1);
  EXPECT_EQ(TrainingState(*lamb.optimizer).slices(), 2u) << "a norm needs the whole parameter";
}

TEST(TrainingState, GradientsThatDifferAreFoundWithinAFewSteps) {
  Replica a = make(OptimizerOptions::Kind::kSgd, 1), b = make(OptimizerOptions::Kind::kSgd, 1);
  for (Replica* r : {&a, &b}) {
    for (const torch::Tensor& p : r->module->parameters()) p.mutable_grad() = torch::ones_like(p);
  }
  const auto steps_that_differ = [&] {
    int differ = 0;
    for (std::uint64_t step = 1; step <= 16; ++step) {
      if (hash_of_gradients(*a.optimizer, step) != hash_of_gradients(*b.optimizer, step)) ++differ;
    }
    return differ;
  };
  EXPECT_EQ(steps_that_differ(), 0);
  b.module->bias.mutable_grad()[499] = 2;
  EXPECT_EQ(steps_that_differ(), 4) << "of four blocks, one in each step";
}

}  // namespace
}  // namespace stormo::train
