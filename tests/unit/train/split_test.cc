// What layers in parts are made of: slices, sums at their ends, the loss of an output in parts, and
// random numbers. That models train so is tested in model_parallel_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/event.h>
#include <stormo/model/loss.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
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
    const TensorParallelGroup ranks(world);
    const torch::Tensor x = torch::full({2, 3}, 5.0, torch::kFloat64).requires_grad_();
    const torch::Tensor y = end_split(begin_split(x, &ranks) * (world.rank() + 1), &ranks);
    EXPECT_TRUE(y.equal(torch::full({2, 3}, 30.0, torch::kFloat64)));
    y.sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({2, 3}, 6.0, torch::kFloat64)));
  });
}

// The same of positions. Of one sample those of a rank lie together, of several they do not.
TEST(Split, AddsUpThePositionsOfEachRank) {
  constexpr int kRanks = 3, kEach = 2;
  for (const std::int64_t batch : {1, 4}) {
    const torch::Tensor whole = torch::randn({batch, kRanks * kEach, 5}, torch::kFloat64);
    test::on_ranks(kRanks, [&](comm::Communicator& world) {
      const TensorParallelGroup ranks(world, /*sequence_parallel=*/true);
      const torch::Tensor mine = whole.narrow(1, kEach * world.rank(), kEach);
      const torch::Tensor x = mine.clone().requires_grad_();
      const torch::Tensor all = begin_split(x, &ranks);
      EXPECT_TRUE(all.equal(whole));
      const torch::Tensor y = end_split(all * (world.rank() + 1), &ranks);
      EXPECT_TRUE(y.allclose(6 * mine));
      (y * mine).sum().backward();
      EXPECT_TRUE(x.grad().allclose(6 * mine));
      EXPECT_THROW(end_split(torch::ones({batch, kRanks + 1, 5}), &ranks), c10::ValueError);
    });
  }
}

// The gradient that a sum gives to both of its terms is one tensor: the other term keeps its own.
TEST(Split, LeavesGradientsThatOthersReadAsTheyAre) {
  test::on_ranks(2, [](comm::Communicator& world) {
    const TensorParallelGroup ranks(world);
    const torch::Tensor x = torch::ones({4}).requires_grad_(),
                        other = torch::ones({4}).requires_grad_();
    (begin_split(x, &ranks) + other).sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({4}, 2.0)));
    EXPECT_TRUE(other.grad().equal(torch::ones({4})));
    const TensorParallelGroup positions(world, /*sequence_parallel=*/true);
    const torch::Tensor part = torch::ones({1, 2}).requires_grad_(),
                        whole = torch::ones({1, 4}).requires_grad_();
    (begin_split(part, &positions) + whole).sum().backward();
    EXPECT_TRUE(part.grad().equal(torch::full({1, 2}, 2.0)));
    EXPECT_TRUE(whole.grad().equal(torch::ones({1, 4})));
  });
}

TEST(Split, RefusesABackwardThatNeedsWhatTheSumHasReplaced) {
  test::on_ranks(2, [](comm::Communicator& world) {
    const TensorParallelGroup ranks(world);
    const torch::Tensor x = torch::ones({4}).requires_grad_();
    const torch::Tensor y = end_split(torch::relu(x), &ranks);
    EXPECT_THROW(y.sum().backward(), std::exception);
    const TensorParallelGroup positions(world, /*sequence_parallel=*/true);
    const torch::Tensor part = torch::ones({1, 4}).requires_grad_();
    EXPECT_THROW(end_split(torch::relu(part), &positions).sum().backward(), std::exception);
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
      const TensorParallelGroup ranks(world);
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

/// Kind and bytes of collectives, in order.
using Collectives = std::vector<std::pair<std::string, std::uint64_t>>;

/// Those of a rank.
struct Seen final : Sink {
  void record(const Event& event) override {
    if (event.lane == Lane::kCommunication) collectives.emplace_back(event.name, event.bytes);
  }
  Collectives collectives;
};

constexpr std::int64_t kRows = 6;

/// What the passes say of the computations of a step.
Collectives stated_by(const std::vector<parallel::Pass>& passes, const plan::ModelShape& model) {
  const plan::StepPlan plan =
      parallel::compose(parallel::one_device(model), passes).take_or_throw();
  analysis::StepSizes sizes;
  sizes.samples = kRows;
  Collectives out;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    if (!row_of(plan.actions[i].kind).micro_batch) continue;
    for (const analysis::Collective& c : analysis::collectives_of(plan, i, sizes)) {
      out.emplace_back(to_string(c.goal), static_cast<std::uint64_t>(c.bytes()));
    }
  }
  return out;
}

/// What two ranks do.
void expect_collectives(const test::Problem& problem, bool sequence_parallel,
                        const Collectives& stated) {
  const std::vector<std::shared_ptr<model::Chain>> models = {problem.model(1), problem.model(1)};
  const test::Batch batch = problem.batches(1, kRows).front();
  const std::int64_t classes = test::classes_of(*models[0]);
  test::on_ranks(2, [&](comm::Communicator& world) {
    model::Chain& chain = *models[static_cast<std::size_t>(world.rank())];
    const TensorParallelGroup ranks(world, sequence_parallel);
    parallelize(chain, ranks);
    Seen seen;
    world.set_sink(&seen);
    const torch::Tensor output = chain.forward(batch.x);
    (classes > 0 ? model::split_cross_entropy(output, batch.target, classes, &ranks)
                 : model::cross_entropy(output, batch.target))
        .backward();
    world.set_sink(nullptr);
    EXPECT_EQ(seen.collectives, stated) << problem.name;
  });
}

// In a block of a transformer: once for attention and once for the MLP, forward and backward.
TEST(Split, EveryModelAddsUpWhatItStates) {
  for (const test::Problem& problem :
       {test::gpt_problem(), test::gpt_problem(/*tied=*/false), test::text_problem(),
        test::mlp_problem(), test::cnn_problem()}) {
    expect_collectives(problem, false,
                       stated_by({parallel::tensor_parallel(2)}, problem.model(1)->split_shape()));
  }
}

// In a block twice as many, of which each sends half as much.
TEST(Split, PositionsAreGatheredAndScatteredAsStated) {
  const test::Problem gpt = test::gpt_problem();
  const plan::ModelShape model = gpt.model(1)->split_shape();
  const parallel::Pass slices = parallel::tensor_parallel(2);
  const Collectives sums = stated_by({slices}, model);
  const Collectives stated = stated_by({slices, parallel::sequence_parallel()}, model);
  expect_collectives(gpt, true, stated);
  const auto count = [](const Collectives& all, const std::string& name) {
    return std::ranges::count(all, name, &Collectives::value_type::first);
  };
  // 2 blocks, embedding and head
  EXPECT_EQ(count(sums, "all_reduce"), 2 * 4 + 2 + 2);
  EXPECT_EQ(count(stated, "all_reduce"), 2);  // of the loss
  EXPECT_EQ(count(stated, "all_gather"), 2 * 4 + 2);
  EXPECT_EQ(count(stated, "reduce_scatter"), 2 * 4 + 2);
}

// Ranks are compared one after the other: libtorch has one generator for all threads.
TEST(SplitRandom, DiffersInsideAndAgreesOutside) {
  struct Drawn {
    torch::Tensor before, inside, again, after;
  };
  const auto draw = [](const TensorParallelGroup* ranks) {
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
    const TensorParallelGroup ranks(*world);
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
