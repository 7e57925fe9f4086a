// What layers in parts are made of: slices, sums at their ends, the loss of an output in parts, and
// random numbers. That models train so is tested in model_parallel_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <torch/torch.h>

#include <stormo/analysis/step/step_collectives.h>
#include <stormo/base/event.h>
#include <stormo/model/loss.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/tensor_parallel.h>
#include <stormo/tensor/split.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::tensor {
namespace {

TEST(Split, SlicesJoinToTheWhole) {
  const torch::Tensor whole = torch::arange(12 * 10, torch::kInt64).view({12, 10});
  for (const plan::Split& split :
       {plan::Split{.dim = 0, .blocks = 3, .units = 4}, plan::Split{.dim = 0, .units = 12},
        plan::Split{.dim = 1, .units = 5}, plan::Split{.dim = 1, .blocks = 2, .units = 5}}) {
    for (const int parts : {1, 2, 3, 4}) {
      std::vector<torch::Tensor> slices;
      std::int64_t elements = 0;
      for (int i = 0; i < parts; ++i) {
        slices.push_back(slice(whole, split, {i, parts}));
        elements += slices.back().numel();
        const std::int64_t units = plan::share(split.units, parts, i).size();
        EXPECT_EQ(slices.back().numel(), whole.numel() / split.units * units);
      }
      EXPECT_EQ(elements, whole.numel());
      EXPECT_TRUE(join(slices, split).equal(whole)) << split.dim << " " << parts;
    }
  }
}

TEST(Split, OfThreeBlocksEachIsCut) {
  const torch::Tensor whole = torch::arange(12, torch::kInt64);
  const torch::Tensor second = slice(whole, {.blocks = 3, .units = 2}, {1, 2});
  EXPECT_TRUE(second.equal(torch::tensor({2, 3, 6, 7, 10, 11}, torch::kInt64)));
}

// y = sum over ranks of (rank + 1) x: its gradient is that of 1 + 2 + 3 terms.
TEST(Split, AddsUpOutputsAndGradientsOnce) {
  test::on_ranks(3, [](comm::Communicator& world) {
    const SplitGroup ranks(world);
    const torch::Tensor x = torch::full({2, 3}, 5.0, torch::kFloat64).requires_grad_();
    const torch::Tensor y = end_split(begin_split(x, &ranks) * (world.rank() + 1), &ranks);
    EXPECT_TRUE(y.equal(torch::full({2, 3}, 30.0, torch::kFloat64)));
    y.sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({2, 3}, 6.0, torch::kFloat64)));
  });
}

// The gradient that a sum gives to both of its terms is one tensor: the other term keeps its own.
TEST(Split, LeavesGradientsThatOthersReadAsTheyAre) {
  test::on_ranks(2, [](comm::Communicator& world) {
    const SplitGroup ranks(world);
    const torch::Tensor x = torch::ones({4}).requires_grad_(),
                        other = torch::ones({4}).requires_grad_();
    (begin_split(x, &ranks) + other).sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({4}, 2.0)));
    EXPECT_TRUE(other.grad().equal(torch::ones({4})));
  });
}

TEST(Split, RefusesABackwardThatNeedsWhatTheSumHasReplaced) {
  test::on_ranks(2, [](comm::Communicator& world) {
    const SplitGroup ranks(world);
    const torch::Tensor x = torch::ones({4}).requires_grad_();
    const torch::Tensor y = end_split(torch::relu(x), &ranks);
    EXPECT_THROW(y.sum().backward(), std::exception);
  });
}

TEST(SplitCrossEntropy, IsThatOfTheWholeLogits) {
  constexpr std::int64_t kClasses = 11;
  torch::manual_seed(5);
  const torch::Tensor logits = torch::randn({4, 3, kClasses}, torch::kFloat64) * 40;
  const torch::Tensor target = torch::randint(kClasses, {4, 3});
  const torch::Tensor whole = logits.clone().requires_grad_();
  const torch::Tensor expected = model::cross_entropy(whole, target);
  (expected * 3).backward();
  for (const int parts : {1, 2, 3}) {
    test::on_ranks(parts, [&](comm::Communicator& world) {
      const SplitGroup ranks(world);
      const plan::Share mine = ranks.share(kClasses);
      const torch::Tensor part = logits.slice(-1, mine.begin, mine.end).clone().requires_grad_();
      const torch::Tensor loss = model::split_cross_entropy(part, target, kClasses, &ranks);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
      (loss * 3).backward();
      const torch::Tensor gradient = whole.grad().slice(-1, mine.begin, mine.end);
      EXPECT_LE((part.grad() - gradient).abs().max().item<double>(), 1e-15);
    });
  }
}

/// The bytes of a rank's all-reduces, in order.
struct Sums final : Sink {
  void record(const Event& event) override {
    const bool is_sum = event.lane == Lane::kCommunication && event.name == "all_reduce";
    if (is_sum) bytes.push_back(event.bytes);
  }
  std::vector<std::uint64_t> bytes;
};

// In a block of a transformer: once for attention and once for the MLP, forward and backward.
TEST(Split, EveryModelAddsUpWhatItStates) {
  for (const test::Problem& problem :
       {test::gpt_problem(), test::gpt_problem(/*tied=*/false), test::text_problem(),
        test::mlp_problem(), test::cnn_problem()}) {
    constexpr std::int64_t kRows = 6;
    std::vector<std::shared_ptr<model::Chain>> models = {problem.model(1), problem.model(1)};
    const test::Batch batch = problem.batches(1, kRows).front();
    const plan::StepPlan plan = parallel::compose(parallel::one_device(models[0]->split_shape()),
                                                  parallel::tensor_parallel(2))
                                    .take_or_throw();
    analysis::StepSizes sizes;
    sizes.samples = kRows;
    std::vector<std::uint64_t> stated;
    for (std::size_t i = 0; i < plan.actions.size(); ++i) {
      if (!has_micro_batch(plan.actions[i].kind)) continue;
      for (const analysis::Collective& c : analysis::collectives_of(plan, i, sizes)) {
        stated.push_back(static_cast<std::uint64_t>(c.bytes()));
      }
    }
    const std::int64_t classes = test::classes_of(*models[0]);
    test::on_ranks(2, [&](comm::Communicator& world) {
      model::Chain& chain = *models[static_cast<std::size_t>(world.rank())];
      const SplitGroup ranks(world);
      parallelize(chain, ranks);
      Sums sums;
      world.set_sink(&sums);
      const torch::Tensor output = chain.forward(batch.x);
      (classes > 0 ? model::split_cross_entropy(output, batch.target, classes, &ranks)
                   : model::cross_entropy(output, batch.target))
          .backward();
      world.set_sink(nullptr);
      EXPECT_EQ(sums.bytes, stated) << problem.name;
    });
  }
}

// Ranks are compared one after the other: libtorch has one generator for all threads.
TEST(SplitRandom, DiffersInsideAndAgreesOutside) {
  struct Drawn {
    torch::Tensor before, inside, again, after;
  };
  const auto draw = [](const SplitGroup* ranks) {
    torch::manual_seed(9);
    Drawn out;
    out.before = torch::rand({8});
    {
      const SplitRandom random(ranks);
      out.inside = torch::rand({8});
    }
    {
      const SplitRandom random(ranks);
      out.again = torch::rand({8});
    }
    out.after = torch::rand({8});
    return out;
  };
  const Drawn alone = draw(nullptr);
  std::vector<Drawn> of;
  test::Group group = comm::make_hosts({2});
  for (const auto& world : group) {
    const SplitGroup ranks(*world);
    of.push_back(draw(&ranks));
    EXPECT_FALSE(of.back().inside.equal(of.back().again));
    const Drawn same = draw(&ranks);  // as a recompute does
    EXPECT_TRUE(same.inside.equal(of.back().inside));
  }
  EXPECT_TRUE(of[0].before.equal(of[1].before));
  EXPECT_TRUE(of[0].before.equal(alone.before));
  EXPECT_FALSE(of[0].inside.equal(of[1].inside));
  EXPECT_TRUE(of[0].after.equal(of[1].after));
}

}  // namespace
}  // namespace stormo::tensor
