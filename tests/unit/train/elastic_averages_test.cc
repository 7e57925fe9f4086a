// Averages of an elastic run: an interrupted one leaves nothing behind, and those that are left
// make it anew, with the period of their outer optimizer.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/elastic/replica_exchange.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/store/averaged_store.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::train::elastic_averages {
namespace {

constexpr double kRate = 0.125;
const std::vector<std::int64_t> kSizes = {5, 3};  // of parameters

/// What one rank trains, in one group after the other.
struct Replica {
  std::shared_ptr<torch::nn::Module> module = std::make_shared<torch::nn::Module>();
  std::vector<torch::Tensor> x;
  std::unique_ptr<Optimizer> optimizer;  // between two groups
  std::vector<torch::Tensor> began_with;
  std::int64_t samples = 0;

  Replica() {
    for (const std::int64_t size : kSizes) {
      const torch::Tensor one = torch::full({size}, 3.0, torch::kFloat64);
      x.push_back(module->register_parameter("x" + std::to_string(x.size()), one));
    }
  }
  void set_gradients(double value) {
    for (torch::Tensor& p : x) p.mutable_grad() = torch::full_like(p, value).detach();
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out;
    for (const torch::Tensor& p : x) out.push_back(p.detach().clone());
    return out;
  }
};

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

/// Of all elements of all parameters.
void expect_all(const Replica& r, double value) {
  for (const torch::Tensor& p : r.x) {
    EXPECT_LE((p.detach() - value).abs().max().item<double>(), 1e-12) << p << " is not " << value;
  }
}

plan::StepPlan plan_of(const TrainerOptions& options, int ranks) {
  plan::ModelShape shape{.segments = {{.name = "x", .parameters = {}, .borrowed = {}}}};
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    shape.segments[0].parameters.push_back(
        {.name = "x" + std::to_string(p), .elements = kSizes[p], .dtype = DType::kFloat64});
  }
  return parallel::plan_for(options.strategy, shape, {.ranks_per_host = {ranks}}, {.commit = true})
      .take_or_throw();
}

TrainerOptions options_with(const OptimizerOptions& optimizer, Strategy::Kind kind) {
  TrainerOptions out;
  out.optimizer = optimizer;
  out.strategy.kind = kind;
  out.strategy.period = 4;
  out.commits = true;
  return out;
}

/// What a rank has in one group: a store, from which it takes the optimizer to the next.
class InGroup {
 public:
  InGroup(comm::Communicator& world, Replica& replica, const TrainerOptions& options)
      : replica_(replica), plan_(plan_of(options, world.size())), groups_(world, plan_) {
    store_ = replica.optimizer ? make_committed_store(plan_, groups_, replica.module, options,
                                                      std::move(replica.optimizer))
                               : make_store(plan_, groups_, replica.module, options);
    store_->set_plan(plan_);
    averaged().go_on(replica.began_with, kRate);
    averaged().count_before(replica.samples);
  }
  ~InGroup() {
    replica_.began_with = averaged().began_with();
    replica_.optimizer = store_->take_optimizer();
  }

  void update(double gradient) {
    replica_.set_gradients(gradient);
    throw_if_error(store_->update({0, kSizes.size()}, {.lr = kRate}));
  }
  Status perform(bool (plan::ActionRow::*which)() const, double weight = 0) {
    Status all;
    for (const plan::Action& a : plan_.actions) {
      if ((row_of(a.kind).*which)() && all.ok()) all = store_->perform(a, weight);
    }
    return all;
  }
  ParameterStore& store() { return *store_; }
  std::vector<torch::Tensor> slots() {
    std::vector<torch::Tensor> out;
    for (const auto& slot : dynamic_cast<FusedOptimizer&>(store_->optimizer()).values().slots) {
      for (const torch::Tensor& t : slot) out.push_back(t.clone());
    }
    return out;
  }

 private:
  AveragedStore& averaged() { return dynamic_cast<AveragedStore&>(*store_); }
  Replica& replica_;
  const plan::StepPlan plan_;
  const AxisGroups groups_;
  std::unique_ptr<ParameterStore> store_;
};

constexpr OptimizerOptions kAdam{.kind = OptimizerOptions::Kind::kAdamW, .lr = kRate};
constexpr OptimizerOptions kMomentum{.lr = kRate, .momentum = 0.9};

// The third rank has one array of state less. So it ends when the others have two of their four
// sums, and breaks the group.
TEST(ElasticAverages, AnInterruptedOneLeavesEveryRankAsItWas) {
  const TrainerOptions options = options_with(kAdam, Strategy::Kind::kParameterAveraging);
  const TrainerOptions fewer = options_with(kMomentum, Strategy::Kind::kParameterAveraging);
  std::vector<Replica> replicas(3);
  comm::on_ranks(
      3,
      [&](comm::Communicator& world) {
        const int rank = world.rank();
        Replica& mine = replicas[static_cast<std::size_t>(rank)];
        InGroup part(world, mine, rank == 2 ? fewer : options);
        part.update(1 + rank);
        const auto values = mine.values();
        const auto slots = part.slots();
        const Status done = part.perform(&plan::ActionRow::averages, /*weight=*/4);
        if (rank == 2) return world.fail({Code::kPeerLost, "it ends"});
        EXPECT_FALSE(done.ok());
        EXPECT_TRUE(equal(mine.values(), values)) << "rank " << rank;
        EXPECT_TRUE(equal(part.slots(), slots)) << "rank " << rank;
      },
      /*finalize=*/false);
}

// A period in which one of three ranks is lost: each counts with its samples before and behind.
TEST(ElasticAverages, ThoseThatAreLeftAverageWithTheSamplesOfTheWholePeriod) {
  const TrainerOptions options =
      options_with({.lr = kRate, .momentum = 0}, Strategy::Kind::kParameterAveraging);
  std::vector<Replica> replicas(3);
  comm::on_ranks(3, [&](comm::Communicator& world) {
    InGroup part(world, replicas[static_cast<std::size_t>(world.rank())], options);
    part.update(8 * (1 + world.rank()));
  });
  replicas[0].samples = 5;
  replicas[1].samples = 1;
  comm::on_ranks(2, [&](comm::Communicator& world) {
    InGroup part(world, replicas[static_cast<std::size_t>(world.rank())], options);
    EXPECT_TRUE(part.perform(&plan::ActionRow::averages, /*weight=*/1).ok());
  });
  // 3 - 1 and 3 - 2, of 6 and 2 samples
  for (int r = 0; r < 2; ++r) expect_all(replicas[static_cast<std::size_t>(r)], 1.75);
}

TEST(ElasticAverages, RanksWithoutSamplesCountAlikeWhereNobodyHasAny) {
  const TrainerOptions options =
      options_with({.lr = kRate, .momentum = 0}, Strategy::Kind::kParameterAveraging);
  std::vector<Replica> replicas(2);
  comm::on_ranks(2, [&](comm::Communicator& world) {
    Replica& mine = replicas[static_cast<std::size_t>(world.rank())];
    InGroup part(world, mine, options);
    part.update(8 * (1 + world.rank()));
    EXPECT_TRUE(part.perform(&plan::ActionRow::averages).ok());
    expect_all(mine, 1.5);
  });
}

// DiLoCo: x is what all began with, in a group before, and v has its momentum.
TEST(ElasticAverages, AnOuterPeriodGoesOnOverOtherRanks) {
  TrainerOptions options =
      options_with({.lr = kRate, .momentum = 0}, Strategy::Kind::kParameterAveraging);
  options.strategy.outer = {parallel::OuterOptimizer::Kind::kNesterov, 0.5, 0.5};
  std::vector<Replica> replicas(3);
  comm::on_ranks(3, [&](comm::Communicator& world) {
    InGroup part(world, replicas[static_cast<std::size_t>(world.rank())], options);
    part.update(8);  // a whole period: all of them 3 -> 2, so g = 1, v = 1, x = 3 - 0.75
    EXPECT_TRUE(part.perform(&plan::ActionRow::averages, 1).ok());
    EXPECT_TRUE(part.perform(&plan::ActionRow::outer_updates).ok());
    part.update(8 * (1 + world.rank()));
  });
  expect_all(replicas[0], 1.25);
  comm::on_ranks(2, [&](comm::Communicator& world) {
    InGroup part(world, replicas[static_cast<std::size_t>(world.rank())], options);
    part.update(8);
    EXPECT_TRUE(part.perform(&plan::ActionRow::averages, 1).ok());
    EXPECT_TRUE(part.perform(&plan::ActionRow::outer_updates).ok());
  });
  // means: 2.25 - 2 and 2.25 - 3, so g = 2.5, v = 0.5 + 2.5, x = 2.25 - 0.5 (2.5 + 1.5)
  for (int r = 0; r < 2; ++r) expect_all(replicas[static_cast<std::size_t>(r)], 0.25);
}

/// Of ranks of which each has something else: weights of its number, averages by `taken` (the
/// epoch; -1: none), and no state where it is -2. Returns what settle_average() says.
bool settled(std::vector<Replica>& replicas, const std::vector<int>& taken,
             std::vector<LocalReplica>& kept) {
  std::vector<int> said(taken.size());
  kept.assign(taken.size(), {});
  replicas = std::vector<Replica>(taken.size());
  comm::on_ranks(static_cast<int>(taken.size()), [&](comm::Communicator& world) {
    const torch::NoGradGuard no_grad;
    const auto i = static_cast<std::size_t>(world.rank());
    FusedOptimizer optimizer(kAdam, trainable_parameters(*replicas[i].module));
    for (torch::Tensor& p : replicas[i].x) p.fill_(world.rank());
    kept[i].take({.epoch = 1, .step = 4});
    kept[i].samples = 7;
    if (taken[i] >= 0) kept[i].take({.epoch = static_cast<Epoch>(taken[i]), .step = 8});
    said[i] = settle_average(world, optimizer, kept[i], 8, taken[i] > -2, /*with_state=*/true)
                  .take_or_throw();
  });
  EXPECT_EQ(std::ranges::count(said, said[0]), std::ssize(said)) << "ranks say the same";
  return said[0];
}

TEST(ElasticAverages, WhatOneHasTakenAllTakeElseTheyAverageAnew) {
  std::vector<Replica> replicas;
  std::vector<LocalReplica> kept;
  const auto expect_values = [&](const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) expect_all(replicas[i], values[i]);
  };
  EXPECT_TRUE(settled(replicas, {-1, -1, -2}, kept));
  expect_values({0, 1, 2});
  EXPECT_EQ(kept[0].samples, 7);
  EXPECT_FALSE(settled(replicas, {2, 2, -2}, kept)) << "all have it";
  expect_values({0, 1, 2});
  EXPECT_FALSE(settled(replicas, {-1, 2, -1}, kept));
  expect_values({1, 1, 1});
  EXPECT_EQ(kept[0].samples, 0);
  for (const LocalReplica& r : kept) EXPECT_EQ(r.averages.last, kept[1].averages.last);
  EXPECT_FALSE(settled(replicas, {2, 3, -2}, kept)) << "two averages, of two epochs";
  expect_values({0, 0, 2});
}

TEST(ElasticAverages, ANewcomerGetsAllOfTheStateOfAnother) {
  TrainerOptions options = options_with(kAdam, Strategy::Kind::kParameterAveraging);
  options.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  std::vector<Replica> replicas(2);
  std::vector<LocalReplica> kept(2);
  std::vector<std::vector<torch::Tensor>> slots(2);
  kept[0].take({.epoch = 3, .step = 8});
  // it has a state before it belongs to ranks with an outer optimizer
  replicas[1].optimizer =
      make_optimizer(options.optimizer, trainable_parameters(*replicas[1].module));
  static_cast<void>(dynamic_cast<FusedOptimizer&>(*replicas[1].optimizer).values());
  comm::on_ranks(2, [&](comm::Communicator& world) {
    const auto i = static_cast<std::size_t>(world.rank());
    InGroup part(world, replicas[i], options);
    auto& optimizer = dynamic_cast<FusedOptimizer&>(part.store().optimizer());
    if (world.rank() == 0) {
      part.update(1);
      kept[0].began_with = dynamic_cast<AveragedStore&>(part.store()).began_with();
      EXPECT_OK(send_replica(world, optimizer, kept[0], 1));
    } else {
      EXPECT_GT(receive_replica(world, optimizer, kept[1], 0).take_or_throw(), 0u);
    }
    slots[i] = part.slots();
    EXPECT_EQ(optimizer.steps(), std::vector<std::int64_t>(kSizes.size(), 1));
  });
  EXPECT_TRUE(equal(replicas[0].values(), replicas[1].values()));
  EXPECT_TRUE(equal(slots[0], slots[1]));
  EXPECT_TRUE(equal(kept[0].began_with, kept[1].began_with));
  EXPECT_EQ(kept[1].averages.last, kept[0].averages.last);
}

// When all have committed a step, each can take the means without its neighbours.
TEST(ElasticAverages, MeansWithNeighboursAreHereBeforeAStepIsCommitted) {
  const TrainerOptions options =
      options_with({.lr = kRate, .momentum = 0}, Strategy::Kind::kGossip);
  std::vector<Replica> replicas(2);
  comm::on_ranks(
      2,
      [&](comm::Communicator& world) {
        Replica& mine = replicas[static_cast<std::size_t>(world.rank())];
        InGroup part(world, mine, options);
        part.update(16 * world.rank());  // 3, and 3 - 2
        EXPECT_TRUE(part.perform(&plan::ActionRow::mixes).ok());
        EXPECT_TRUE(part.store().finish_gradients().ok());
        EXPECT_TRUE(world.barrier().ok());
        world.fail({Code::kPeerLost, "it ends"});
        part.update(8);
        expect_all(mine, 1);
      },
      /*finalize=*/false);
}

}  // namespace
}  // namespace stormo::train::elastic_averages
