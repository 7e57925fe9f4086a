// Gossip in pairs (AD-PSGD): nothing is lost of what ranks have, nobody waits for a slow one, and
// where all meet they have the mean.
#include <poll.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/protocol/gossip/pairs.h>
#include <stormo/train/loop/pair_means.h>

#include "tests/unit/comm/ranks.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::distance;
using testing::HasSubstr;

constexpr int kSmall = 7, kLarge = 20'000;  // elements; a long message does not fit into a record

void look_again() { ::poll(nullptr, 0, 1); }

/// With its own numbers.
NamedParameter parameter(const std::string& name, std::int64_t elements, int rank) {
  const torch::Tensor numbers = torch::arange(elements, torch::kFloat64);
  return {.name = name, .tensor = torch::sin(numbers + 10 * rank).set_requires_grad(true)};
}

/// One rank with two parameters.
struct PairMember {
  PairMember(comm::Communicator& world, const PairMeans::Options& options)
      : rank(world.rank()),
        optimizer({.lr = 0.1},
                  {parameter("small", kSmall, rank), parameter("large", kLarge, rank)}),
        means(PairMeans::create(world, optimizer, options)) {}

  /// Until this rank has taken so many means; a rank that answers does not step.
  void ask_until(std::int64_t taken) {
    while (protocol::asks(rank) && means->taken() < taken) {
      throw_if_error(means->after_step(++steps));
      look_again();
    }
  }
  /// As an update would.
  void add(double change) {
    const torch::NoGradGuard no_grad;
    FusedOptimizer::Values now = optimizer.values();
    for (torch::Tensor& w : now.weights) w.add_(change);
    throw_if_error(means->after_step(++steps));
  }
  torch::Tensor values() {
    std::vector<torch::Tensor> all;
    const FusedOptimizer::Values now = optimizer.values();
    for (const torch::Tensor& w : now.weights) all.push_back(w.detach().flatten());
    return torch::cat(all);
  }

  const int rank;
  FusedOptimizer optimizer;
  std::unique_ptr<PairMeans> means;
  std::int64_t steps = 0;
};

using Work = std::function<void(PairMember&, int round)>;
/// The values of each rank, before and after.
struct Values {
  std::vector<torch::Tensor> before, after;
};

Values after(int ranks, int rounds, const Work& work, const PairMeans::Options& options = {}) {
  const std::vector<torch::Tensor> each(static_cast<std::size_t>(ranks));
  Values out{each, each};
  comm::on_ranks(ranks, [&](comm::Communicator& world) {
    PairMember member(world, options);
    const auto r = static_cast<std::size_t>(world.rank());
    out.before[r] = member.values();
    for (int round = 0; round < rounds; ++round) {
      throw_if_error(member.means->begin());
      work(member, round);
      throw_if_error(member.means->end());
      throw_if_error(world.barrier());
    }
    out.after[r] = member.values();
  });
  return out;
}

torch::Tensor mean_of(const std::vector<torch::Tensor>& all) { return torch::stack(all).mean(0); }
double most(const torch::Tensor& x) { return x.abs().max().item<double>(); }

// In each round, whoever is first.
TEST(PairMeans, KeepTheMeanTo1e12AndComeToIt) {
  for (const int ranks : {2, 3, 5, 8}) {
    const Values v =
        after(ranks, 40, [](PairMember& m, int round) { m.ask_until(4 * (round + 1)); });
    const torch::Tensor mean = mean_of(v.before);
    EXPECT_LE(most(mean_of(v.after) - mean), 1e-12) << ranks;
    EXPECT_GT(most(v.before[0] - mean), 0.1) << ranks;
    for (const torch::Tensor& own : v.after) EXPECT_LE(most(own - mean), 1e-6) << ranks;
  }
}

// While a rank awaits a mean, and while another one takes one with it, its steps go on.
TEST(PairMeans, LoseNothingOfWhatStepsChange) {
  constexpr int kRanks = 5, kSteps = 100;
  const Values v = after(kRanks, 2, [](PairMember& m, int round) {
    for (int step = 0; step < kSteps; ++step) m.add(0.01 * (m.rank + 1));
    m.ask_until(20 * (round + 1));
    for (int step = 0; step < kSteps; ++step) m.add(-0.005 * m.rank);
  });
  double change = 0;  // of the sum, in two rounds
  for (int r = 0; r < kRanks; ++r) change += 2 * kSteps * (0.01 * (r + 1) - 0.005 * r);
  EXPECT_LE(most(mean_of(v.after) - mean_of(v.before) - change / kRanks), 1e-11);
}

// end() takes what is awaited.
TEST(PairMeans, AskAsOftenAsTheyAreTold) {
  std::vector<std::int64_t> taken;
  const auto twenty_steps = [&](PairMember& m, int) {
    if (m.rank == 0) taken.push_back(m.means->taken());
    for (int step = 0; step < 20; ++step) m.add(0);
  };
  after(2, 4, twenty_steps, {.period = 20});
  EXPECT_THAT(taken, testing::ElementsAre(0, 1, 2, 3));
}

TEST(PairMeans, TellOthersToEnd) {
  std::atomic<int> called{0};
  after(6, 1, [&](PairMember& m, int) {
    if (m.rank == 3) m.means->call();
    while (protocol::asks(m.rank) && !m.means->called()) {
      m.add(0);
      look_again();
    }
    called += m.means->called() ? 1 : 0;
  });
  EXPECT_GE(called, 3 + 1) << "those that ask, and the one that answers";
}

/// Ranks that train: how many steps each of them has begun.
class PairsRun : public test::TrainerRun {
 protected:
  PairsRun() : TrainerRun("stormo_pairs_") {
    options.optimizer = {.lr = 0.05, .momentum = 0};
    options.strategy = {.kind = Strategy::Kind::kGossip, .period = 1};
    options.strategy.topology = "pairs";
  }
  /// Rank `slow` ends its first step when all others have begun all but their last one.
  void hold(int ranks, int slow) {
    in_loss = [this, ranks, slow](Rank rank) {
      const std::int64_t mine = ++begun_[static_cast<std::size_t>(rank)];
      if (rank != slow || mine > 1) return;
      for (int r = 0; r < ranks; ++r) {
        while (r != slow && begun_[static_cast<std::size_t>(r)] < options.steps - 1) look_again();
      }
    };
  }
  std::array<std::atomic<std::int64_t>, 8> begun_{};
};

TEST_F(PairsRun, NobodyWaitsForASlowRank) {
  for (const int slow : {0, 1, 3}) {
    for (auto& steps : begun_) steps = 0;
    hold(4, slow);
    const Outcome ran = run(4);
    EXPECT_EQ(begun_[static_cast<std::size_t>(slow)], options.steps) << slow;
    EXPECT_EQ(ran.end.samples, options.steps * options.global_batch);
    EXPECT_GT(ran.end.averaging->averages, 0) << "pairs that met";
  }
}

TEST_F(PairsRun, WithoutAQuestionItIsTheAverageOfIndependentRuns) {
  options.strategy.period = 1000;
  const Outcome alone = run(3);
  EXPECT_EQ(alone.end.averaging->averages, 0);
  options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = 1000};
  options.strategy.average_state = Strategy::AverageState::kNo;
  EXPECT_EQ(run(3).end.weights_hash, alone.end.weights_hash);
}

TEST_F(PairsRun, LearnsAsSynchronousGossipDoes) {
  options.steps = 200;
  const Outcome pairs = run(4);
  EXPECT_GE(pairs.end.averaging->averages, 2);
  options.strategy.topology = "ring";
  const Outcome ring = run(4);
  EXPECT_LT(ring.evals.back().loss, 0.8 * ring.steps.front().loss);
  EXPECT_NEAR(pairs.evals.back().loss, ring.evals.back().loss, 0.05);
}

// All ranks have the mean there, and equal weights: the run says so itself.
TEST_F(PairsRun, EvaluatesAndSavesTheMeanOfAllRanks) {
  options.eval_every = 5;
  options.verify_every = 4;
  options.checkpoint = {.directory = folder, .every = 6};
  options.overwrite = true;
  accepted_changes = {"strategy"};
  EXPECT_EQ(run(4).evals.size(), 4U);
  options.steps = 30;
  EXPECT_TRUE(std::isfinite(resumed(3).end.train_loss));
  options.steps = 36;
  options.strategy.topology = "ring";
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 42;
  options.strategy.topology = "pairs";
  EXPECT_EQ(resumed(1).end.steps, 42) << "one rank has nobody to ask";
}

TEST_F(PairsRun, SaysWhatDoesNotFit) {
  options.strategy.gradient_tracking = true;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("leave out gradient_tracking"));
}

}  // namespace
}  // namespace stormo::train
