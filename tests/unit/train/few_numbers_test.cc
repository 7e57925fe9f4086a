// Runs whose gradients travel as few numbers, with momentum of the ranks and a warm-up.
#include <stormo/train/step/few_numbers.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stormo/comm/codec/sum_of_codes.h>
#include <stormo/parallel/computation/correct_momentum.h>
#include <stormo/train/checkpoint/saved_residuals.h>
#include <stormo/train/state/residuals.h>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/train/trainer_run.h"

namespace stormo {
namespace {

using testing::HasSubstr;
using train::TensorMap;

constexpr codec::MomentumCorrection kMomentum{.momentum = 0.9};

class FewNumbers : public test::TrainerRun {
 protected:
  FewNumbers() : TrainerRun("few_numbers") {
    options.strategy.parameters = train::Strategy::Parameters::kReplicated;
    options.optimizer = {.lr = 0.05, .momentum = 0.9};
    options.gradients.codec = {Codec::kTopK, 0.05};
    options.passes = {parallel::correct_momentum(kMomentum)};
  }
};

TEST_F(FewNumbers, WhereAllTravelARunIsThatOfOneProcess) {
  options.steps = 8;
  const test::Values alone = run(1).values;
  for (const Codec::Kind kind : {Codec::kTopK, Codec::kThreshold, Codec::kRandomK}) {
    options.gradients.codec = {kind, 1};
    options.gradients.bucket_bytes = kind == Codec::kTopK ? 4000 : 0;
    EXPECT_LT(test::distance(run(2).values, alone), 1e-5) << to_string(kind);
  }
  EXPECT_LT(test::distance(run(3).values, alone), 1e-5);
  options.optimizer.momentum = 0;
  options.passes = {};
  EXPECT_GT(test::distance(run(2).values, alone), 1e-3) << "without momentum it is another run";
}

TEST_F(FewNumbers, ARunGoesOnBitwiseAlsoInItsWarmUp) {
  options.checkpoint.directory = folder;
  options.averaging.warmup_steps = 12;
  for (const codec::MomentumCorrection& how :
       {kMomentum, codec::MomentumCorrection{.momentum = 0.9, .clip_norm = 0.5}}) {
    options.clip_norm = how.clip_norm;
    options.passes = {parallel::correct_momentum(how)};
    expect_bits_of_whole_run(3, {5, 14}, to_string(how));
  }
}

TEST_F(FewNumbers, ARunGoesOnOnOtherRanks) {
  options.checkpoint.directory = folder;
  options.overwrite = true;
  options.steps = 40;
  const double whole = run(3).steps.back().loss;
  for (const int ranks : {1, 2, 4}) {
    options.steps = 20;
    run(3);
    options.steps = 40;
    EXPECT_NEAR(resumed(ranks).steps.back().loss, whole, 0.3 * whole) << ranks;
  }
}

// The bytes of each step are those of the plan of its density.
TEST_F(FewNumbers, AWarmUpSendsWhatThePlansOfItsDensitiesSend) {
  make_group = [](int ranks) -> Result<std::vector<std::unique_ptr<comm::Communicator>>> {
    return comm::make_hosts(std::vector<int>(static_cast<std::size_t>(ranks), 1));
  };
  options.gradients.overlap = false;
  const auto sent = [this](double density, std::int64_t warmup, std::int64_t steps) {
    options.gradients.codec.density = density;
    options.averaging.warmup_steps = warmup;
    options.steps = steps;
    return run(2).end.bytes_sent_per_rank.at(0);
  };
  const auto of_step = [&](double density, std::int64_t warmup, std::int64_t step) {
    return static_cast<std::int64_t>(sent(density, warmup, step) - sent(density, warmup, step - 1));
  };
  for (const auto& [step, density] :
       {std::pair{3, 0.25}, {6, 0.0625}, {8, 0.015625}, {10, 0.004}}) {
    EXPECT_EQ(of_step(0.004, 8, step), of_step(density, 0, step)) << "step " << step;
  }
  std::int64_t numbers = 0;
  for (const torch::Tensor& p : test::make_toy_module(3)->parameters()) numbers += p.numel();
  const auto part = [&](double density) {
    return encoded_parts(row_of(Codec::kTopK), density, numbers, 2).bytes;
  };
  EXPECT_EQ(of_step(0.25, 0, 4) - of_step(0.004, 0, 4), 2 * (part(0.25) - part(0.004)));
}

TEST_F(FewNumbers, OtherOptimizersAreRefused) {
  const auto refusal = [this] { return try_run(2).status().message(); };
  options.optimizer = {.kind = train::OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  EXPECT_THAT(refusal(), HasSubstr("ranks encode the momentum of sgd, without nesterov"));
  options.optimizer = {.lr = 0.05, .momentum = 0.5};
  EXPECT_THAT(refusal(), HasSubstr("ranks encode a momentum of 0.9 in place of the optimizer's, "
                                   "which is 0.5: give it the same optimizer.momentum"));
  options.optimizer.momentum = 0.9;
  options.clip_norm = 1;
  options.passes = {parallel::correct_momentum({.momentum = 0.9, .clip_norm = 2})};
  EXPECT_THAT(refusal(), HasSubstr("give both the same"));
}

TEST_F(FewNumbers, AWarmUpIsOfCodecsWithADensity) {
  options.passes = {};
  options.averaging.warmup_steps = 3;
  options.gradients.codec = Codec::kInt8;
  EXPECT_THAT(try_run(2).status().message(),
              HasSubstr("strategy.warmup_steps: lowers the share of gradients that travels"));
}

/// What ranks keep of the sums of one list of numbers, and the law of each of their sums.
struct KeptByRanks {
  static constexpr std::int64_t kCount = 211;
  Codec codec;
  std::map<std::string, torch::Tensor> saved = {};  ///< as a checkpoint has it
  torch::Tensor lost = torch::zeros({kCount}, torch::kFloat64), velocity = lost.clone();

  /// Adds up on so many ranks, which go on with what is saved, and then save.
  void add_up(int ranks, int steps, bool begins = false) {
    const std::map<std::string, torch::Tensor> before = std::exchange(saved, {});
    const torch::Tensor lost_before = lost.clone(), velocity_before = velocity.clone();
    std::mutex mutex;
    std::vector<torch::Tensor> losts(static_cast<std::size_t>(steps + 1)),
        velocities = losts, ins = losts, outs = losts;
    comm::on_ranks(ranks, [&](comm::Communicator& c) {
      comm::SumOfCodes sum(c, row_of(codec), kCount, codec.density, kMomentum);
      TensorMap own = begins ? TensorMap() : own_part(c, before);
      train::restore_residual(own, "p", sum);
      for (int step = 0; step <= steps; ++step) {
        const auto n = static_cast<std::size_t>(step);
        const auto seed = static_cast<std::uint64_t>(1000 * ranks + 100 * c.rank() + step);
        torch::Tensor terms =
            torch::randn({kCount}, at::make_generator<at::CPUGeneratorImpl>(seed));
        if (step > 0) {
          {
            const std::lock_guard lock(mutex);
            plus(ins[n], terms);
          }
          sum_of(c, sum, terms);
        }
        const std::lock_guard lock(mutex);
        outs[n] = terms.to(torch::kFloat64);
        keep(c, sum, losts[n], velocities[n]);
        if (step < steps) continue;
        TensorMap kept;
        train::add_residual(kept, "p", sum);
        for (const auto& [key, values] : kept) saved[train::saved_residual(c.rank(), key)] = values;
      }
    });
    expect_equal(losts[0], lost_before, "lost, on " + std::to_string(ranks) + " ranks");
    expect_equal(velocities[0], velocity_before, "momentum");
    for (std::size_t n = 1; n < ins.size(); ++n) {
      expect_equal(losts[n - 1] + 0.9 * velocities[n - 1] + ins[n], outs[n] + losts[n], "a step");
    }
    lost = losts.back();
    velocity = velocities.back();
  }

 private:
  static TensorMap own_part(comm::Communicator& c,
                            const std::map<std::string, torch::Tensor>& before) {
    std::vector<std::string> names;
    for (const auto& one : before) names.push_back(one.first);
    const auto read = [&](const std::string& name) -> Result<torch::Tensor> {
      return before.at(name).clone();
    };
    return train::residuals_for({.rank = c.rank(), .ranks = c.size()}, names, read).take_or_throw();
  }
  static void sum_of(comm::Communicator& c, comm::SumOfCodes& sum, torch::Tensor& terms) {
    const comm::Buffer buffer{terms.data_ptr(), kCount, DType::kFloat32};
    EXPECT_OK(c.run({.kind = comm::OperationKind::kAllReduce,
                     .in = {&buffer, 1},
                     .out = {&buffer, 1},
                     .encoding = &sum},
                    Deadline::never()));
  }
  static void plus(torch::Tensor& to, const torch::Tensor& values) {
    to = to.defined() ? to + values : values.to(torch::kFloat64);
  }
  static void keep(comm::Communicator& c, comm::SumOfCodes& sum, torch::Tensor& lost_now,
                   torch::Tensor& velocity_now) {
    const std::int64_t ranks = c.size();
    const torch::Tensor kept = train::tensor_of(sum.kept().at(0)).to(torch::kFloat64, false, true);
    kept.select(0, c.rank()).add_(kept.select(0, ranks));
    plus(lost_now, train::kept_of_parts(kept, 0, ranks, kCount));
    plus(velocity_now, train::kept_of_parts(kept, ranks + 1, ranks, kCount));
  }
  void expect_equal(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) const {
    EXPECT_LT((a - b).abs().max().item<double>(), 1e-4) << to_string(codec) << ": " << what;
  }
};

// The law of error feedback, over runs that go on on other ranks.
TEST(KeptOnOtherRanks, NothingIsLostAndMomentumStays) {
  for (const Codec::Kind kind : {Codec::kTopK, Codec::kThreshold, Codec::kRandomK}) {
    KeptByRanks kept{.codec = {kind, 0.05}};
    kept.add_up(3, 8, /*begins=*/true);
    EXPECT_GT(kept.lost.abs().sum().item<double>(), 100);
    EXPECT_GT(kept.velocity.abs().sum().item<double>(), 100);
    for (const int ranks : {2, 5, 4, 4, 1, 3}) kept.add_up(ranks, 4);
  }
}

}  // namespace
}  // namespace stormo
