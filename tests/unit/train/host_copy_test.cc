// One copy of parameters and optimizer state for the ranks of a host: of what some of them leave
// the others end the update, with the bits of one process.
#include <stormo/train/store/host_copy.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using Kind = OptimizerOptions::Kind;

/// Sizes that leave some parts empty, that no block divides, and of several blocks.
constexpr std::array<std::int64_t, 3> kSizes = {1, 77, 30'001};

struct Replica {
  explicit Replica(Kind kind, double first) {
    std::vector<NamedParameter> parameters;
    for (const std::int64_t size : kSizes) {
      const auto type = size == 77 ? torch::kFloat64 : torch::kFloat32;
      parameters.push_back(
          {"p" + std::to_string(size),
           (torch::arange(size, torch::dtype(type)) * 0.01 + first).requires_grad_()});
    }
    OptimizerOptions options{.kind = kind, .lr = 0.05};
    options.momentum = 0.9;
    optimizer = std::make_unique<FusedOptimizer>(options, std::move(parameters));
  }
  std::vector<torch::Tensor> values() {
    std::vector<torch::Tensor> out;
    const FusedOptimizer::Values all = optimizer->values();
    for (const torch::Tensor& t : all.weights) out.push_back(t.detach().clone().flatten());
    for (const auto& slot : all.slots) {
      for (const torch::Tensor& t : slot) out.push_back(t.clone());
    }
    return out;
  }
  std::unique_ptr<FusedOptimizer> optimizer;
};

/// Gradients of step `step`, equal for whoever asks. The second parameter has none in step 2.
struct Gradients {
  explicit Gradients(int step) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const bool wide = kSizes[i] == 77;
      if (wide && step == 2) continue;
      tensors[i] = torch::cos(
          torch::arange(kSizes[i], torch::dtype(wide ? torch::kFloat64 : torch::kFloat32)) * step);
      terms[i].data = tensors[i].const_data_ptr();
      ranges.push_back({.parameter = i,
                        .sources = {&terms[i], 1},
                        .dtype = wide ? DType::kFloat64 : DType::kFloat32});
    }
  }
  std::array<torch::Tensor, kSizes.size()> tensors;
  std::array<optim::GradientTerm, kSizes.size()> terms;
  std::vector<RangeGradient> ranges;
};

std::vector<torch::Tensor> after_steps(Kind kind, int steps) {
  Replica alone(kind, 1);
  for (int s = 1; s <= steps; ++s) {
    const Gradients gradients(s);
    EXPECT_TRUE(alone.optimizer->step({.lr = 0.05}, gradients.ranges).ok());
  }
  return alone.values();
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

void say_nothing(const std::string& /*line*/) {}

TEST(HostCopy, PartsOfAllRanksAreTheUpdateOfOne) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdamW, Kind::kLion}) {
    for (const int ranks : {1, 2, 3}) {
      test::on_ranks(ranks, [&](comm::Communicator& host) {
        // only the first one's values count
        Replica mine(kind, 1 + host.rank());
        auto copy = HostCopy::create(host, *mine.optimizer, {}, host.rank() == 0).take_or_throw();
        for (int s = 1; s <= 3; ++s) {
          const Gradients gradients(s);
          throw_if_error(copy->update({.lr = 0.05}, gradients.ranges));
          throw_if_error(host.barrier());
        }
        expect_equal(mine.values(), after_steps(kind, 3));
        throw_if_error(host.barrier());
      });
    }
  }
}

TEST(HostCopy, OneRankEndsWhatOthersHaveNotBegun) {
  test::on_ranks(3, [&](comm::Communicator& host) {
    Replica mine(Kind::kAdamW, 1);
    auto copy = HostCopy::create(host, *mine.optimizer, {}, true).take_or_throw();
    const Gradients first(1), second(2);
    throw_if_error(copy->update({.lr = 0.05}, first.ranges));
    throw_if_error(host.barrier());
    if (host.rank() == 1) {
      throw_if_error(copy->update({.lr = 0.05}, second.ranges));
      throw_if_error(copy->finish(say_nothing));
      expect_equal(mine.values(), after_steps(Kind::kAdamW, 2));
    }
    throw_if_error(host.barrier());
    if (host.rank() == 2) {  // late: there is nothing left to do
      throw_if_error(copy->update({.lr = 0.05}, second.ranges));
      throw_if_error(copy->finish(say_nothing));
    }
    throw_if_error(host.barrier());
    expect_equal(mine.values(), after_steps(Kind::kAdamW, 2));
    throw_if_error(host.barrier());
  });
}

TEST(HostCopy, AllMayEndItAtOnce) {
  test::on_ranks(3, [&](comm::Communicator& host) {
    Replica mine(Kind::kAdamW, 1);
    auto copy = HostCopy::create(host, *mine.optimizer, {}, true).take_or_throw();
    for (int s = 1; s <= 20; ++s) {
      const Gradients gradients(s);
      throw_if_error(copy->update({.lr = 0.05}, gradients.ranges));
      throw_if_error(copy->finish(say_nothing));
      if (s % 5 == 0) throw_if_error(host.barrier());
      // whoever has ended goes on; nobody may begin the next one before all know of this one
      throw_if_error(host.barrier());
    }
    expect_equal(mine.values(), after_steps(Kind::kAdamW, 20));
    throw_if_error(host.barrier());
  });
}

TEST(HostCopy, StaysWhereItIsForTheNextGroup) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int r = 0; r < 3; ++r) replicas.push_back(std::make_unique<Replica>(Kind::kAdamW, 1 + r));
  std::vector<HostCopy::Memory> memory(3);
  // of three ranks the second one is another process later, without state
  for (int group = 1; group <= 2; ++group) {
    if (group == 2) {
      replicas[1] = std::make_unique<Replica>(Kind::kAdamW, 5);
      memory[1] = nullptr;
    }
    test::on_ranks(3, [&](comm::Communicator& host) {
      const auto r = static_cast<std::size_t>(host.rank());
      Replica& mine = *replicas[r];
      const HostCopy::Memory before = memory[r];
      auto copy =
          HostCopy::create(host, *mine.optimizer, {before, before != nullptr}, group == 1 || r != 1)
              .take_or_throw();
      if (before != nullptr) {
        EXPECT_EQ(copy->memory(), before) << "nothing is copied";
      }
      memory[r] = copy->memory();
      if (group == 2 && r == 1) {
        mine.optimizer->set_steps(std::vector<std::int64_t>(kSizes.size(), 1));
      }
      const Gradients gradients(group == 1 ? 1 : 3);
      throw_if_error(copy->update({.lr = 0.05}, gradients.ranges));
      throw_if_error(host.barrier());
    });
  }
  Replica alone(Kind::kAdamW, 1);
  for (const int s : {1, 3}) {
    const Gradients gradients(s);
    ASSERT_TRUE(alone.optimizer->step({.lr = 0.05}, gradients.ranges).ok());
  }
  for (const auto& replica : replicas) expect_equal(replica->values(), alone.values());
  // one of its own
  HostCopy::leave(*replicas[0]->optimizer);
  const Gradients gradients(4);
  ASSERT_TRUE(replicas[0]->optimizer->step({.lr = 0.05}, gradients.ranges).ok());
  expect_equal(replicas[1]->values(), alone.values());
  ASSERT_TRUE(alone.optimizer->step({.lr = 0.05}, gradients.ranges).ok());
  expect_equal(replicas[0]->values(), alone.values());
}

/// As when hosts have not equally many ranks for a while.
TEST(HostCopy, TakesTheSameMemoryAfterEachHadACopyOfItsOwn) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int r = 0; r < 2; ++r) replicas.push_back(std::make_unique<Replica>(Kind::kAdamW, 1));
  std::vector<HostCopy::Kept> kept(2);
  for (int group = 1; group <= 2; ++group) {
    test::on_ranks(2, [&](comm::Communicator& host) {
      const auto r = static_cast<std::size_t>(host.rank());
      auto copy = HostCopy::create(host, *replicas[r]->optimizer, kept[r], /*has_state=*/true)
                      .take_or_throw();
      if (group == 2) {
        EXPECT_EQ(copy->memory(), kept[r].memory);
      }
      kept[r].memory = copy->memory();
      const Gradients gradients(group == 1 ? 1 : 3);
      throw_if_error(copy->update({.lr = 0.05}, gradients.ranges));
      throw_if_error(host.barrier());
    });
    if (group == 2) break;
    const Gradients gradients(2);
    for (const auto& replica : replicas) {
      HostCopy::leave(*replica->optimizer);
      ASSERT_TRUE(replica->optimizer->step({.lr = 0.05}, gradients.ranges).ok());
    }
  }
  for (const auto& replica : replicas)
    expect_equal(replica->values(), after_steps(Kind::kAdamW, 3));
}

TEST(HostCopy, WhereStatesLieApartTheFirstOneCounts) {
  test::on_ranks(2, [&](comm::Communicator& host) {
    Replica mine(Kind::kSgd, 1 + host.rank());
    auto copy = HostCopy::create(host, *mine.optimizer, {}, true).take_or_throw();
    expect_equal(mine.values(), after_steps(Kind::kSgd, 0));
    throw_if_error(host.barrier());
  });
}

TEST(HostCopy, SquaresOfPartsAddUp) {
  const Gradients gradients(1);
  double expected = 0;
  for (const torch::Tensor& t : gradients.tensors) {
    expected += t.to(torch::kFloat64).square().sum().item<double>();
  }
  std::mutex mutex;
  double sum = 0;
  test::on_ranks(3, [&](comm::Communicator& host) {
    Replica mine(Kind::kSgd, 1);
    auto copy = HostCopy::create(host, *mine.optimizer, {}, true).take_or_throw();
    const std::lock_guard lock(mutex);
    sum += copy->gradient_squares(gradients.ranges);
  });
  EXPECT_NEAR(sum, expected, 1e-9 * expected);
}

}  // namespace
}  // namespace stormo::train
