// Ways of use: own blocks, accumulation, frozen and unused parameters, ranks without samples,
// passes that fail. The oracle is the gradient of one process on all ranks' batches.
#include <cmath>
#include <mutex>

#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using test::Values;

constexpr int kRanks = 3;
constexpr std::int64_t kRowsPerRank = 2;  // of each rank

/// Two blocks and a function of both; `side` is used when asked for.
struct Blocks {
  explicit Blocks(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = std::make_shared<torch::nn::LinearImpl>(6, 9);
    second = std::make_shared<torch::nn::LinearImpl>(9, 6);
    side = std::make_shared<torch::nn::LinearImpl>(6, 6);
    for (const auto& block : {first, second, side}) block->to(torch::kFloat64);
  }
  std::shared_ptr<torch::nn::LinearImpl> first, second, side;
};

std::vector<Blocks> make_blocks() {
  std::vector<Blocks> out;
  for (int r = 0; r <= kRanks; ++r) out.emplace_back(1 + static_cast<std::uint64_t>(r));
  out.back() = Blocks(1);  // as rank 0: the reference
  return out;
}

torch::Tensor inputs() {
  torch::manual_seed(5);
  return torch::randn({kRanks * kRowsPerRank, 6}, torch::kFloat64);
}

/// The gradients of all parameters, put together from the ranks' pieces; undefined ones are absent.
class Collected {
 public:
  void add(const FullyShardedDataParallel& fsdp) {
    const std::lock_guard lock(mutex_);
    const auto shards = fsdp.shards();
    for (const TensorPiece& piece : fsdp.state()) {
      for (const NamedParameter& p : shards) {
        if (p.name != piece.name || !p.tensor.grad().defined()) continue;
        auto& whole = values_[p.name];
        if (!whole.defined()) whole = torch::full(piece.shape, std::nan(""), torch::kFloat64);
        whole.view(-1).slice(0, piece.begin, piece.end).copy_(p.tensor.grad());
      }
    }
  }
  const Values& values() const { return values_; }

 private:
  std::mutex mutex_;
  Values values_;
};

void expect_gradients(const Values& got, const Blocks& wanted, double factor = 1) {
  std::size_t defined = 0;
  const std::pair<const char*, torch::nn::LinearImpl*> blocks[] = {
      {"first", wanted.first.get()}, {"second", wanted.second.get()}, {"side", wanted.side.get()}};
  for (const auto& [name, block] : blocks) {
    for (const auto& p : block->named_parameters()) {
      const std::string full = std::string(name) + "." + p.key();
      if (!p.value().grad().defined()) {
        EXPECT_FALSE(got.contains(full)) << full;
        continue;
      }
      ++defined;
      ASSERT_TRUE(got.contains(full)) << full;
      EXPECT_TRUE(torch::allclose(got.at(full), factor * p.value().grad(), 1e-12, 1e-14)) << full;
    }
  }
  EXPECT_EQ(got.size(), defined);
}

void shard_all(FullyShardedDataParallel& fsdp, const Blocks& blocks) {
  fsdp.shard("first", blocks.first);
  fsdp.shard("second", blocks.second);
  fsdp.shard("side", blocks.side);
}

using OnRank = std::function<void(comm::Communicator&, FullyShardedDataParallel&, const Blocks&,
                                  const torch::Tensor& x)>;

/// Runs `rank` on every rank for stages 2 and 3; `whole` on the reference with all rows.
void compare(const OnRank& rank,
             const std::function<void(const Blocks&, const torch::Tensor&)>& whole,
             double factor = 1) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const auto blocks = make_blocks();
    const torch::Tensor x = inputs();
    Collected collected;
    test::on_ranks(kRanks, [&](comm::Communicator& c) {
      const Blocks& mine = blocks[static_cast<std::size_t>(c.rank())];
      FullyShardedDataParallel fsdp(c, {.stage = stage});
      shard_all(fsdp, mine);
      rank(c, fsdp, mine, x.narrow(0, c.rank() * kRowsPerRank, kRowsPerRank));
      collected.add(fsdp);
    });
    whole(blocks.back(), x);
    expect_gradients(collected.values(), blocks.back(), factor);
  }
}

torch::Tensor forward(FullyShardedDataParallel& fsdp, const Blocks& b, const torch::Tensor& x) {
  return fsdp.forward(b.second, torch::tanh(fsdp.forward(b.first, x)));
}
torch::Tensor forward(const Blocks& b, const torch::Tensor& x) {
  return b.second->forward(torch::tanh(b.first->forward(x)));
}

TEST(ShardedUse, BlocksAndAnUnusedOne) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        forward(fsdp, b, x).square().mean().backward();
      },
      [](const Blocks& b, const torch::Tensor& x) { forward(b, x).square().mean().backward(); });
}

TEST(ShardedUse, ParametersThatOneRankUses) {
  const auto use = [](const Blocks& b, const torch::Tensor& y, bool bias) {
    return bias ? torch::linear(y, b.second->weight, b.second->bias)
                : torch::linear(y, b.second->weight);
  };
  struct MaybeBias : torch::nn::Module {
    explicit MaybeBias(const torch::nn::LinearImpl& linear)
        : weight(register_parameter("weight", linear.weight)),
          bias(register_parameter("bias", linear.bias)) {}
    torch::Tensor forward(const torch::Tensor& x, bool with_bias) {
      return with_bias ? torch::linear(x, weight, bias) : torch::linear(x, weight);
    }
    torch::Tensor weight, bias;
  };
  for (const int stage : {1, 2, 3}) {
    const auto blocks = make_blocks();
    const torch::Tensor x = inputs();
    Collected collected;
    test::on_ranks(kRanks, [&](comm::Communicator& c) {
      const Blocks& mine = blocks[static_cast<std::size_t>(c.rank())];
      const auto maybe = std::make_shared<MaybeBias>(*mine.second);
      const torch::nn::Linear first(mine.first);
      FullyShardedDataParallel fsdp(c, {.stage = stage});
      fsdp.shard("first", first);
      fsdp.shard("second", maybe);
      const torch::Tensor h =
          torch::tanh(fsdp.forward(first, x.narrow(0, c.rank() * kRowsPerRank, kRowsPerRank)));
      fsdp.forward(maybe, h, c.rank() == 1).square().mean().backward();
      collected.add(fsdp);
    });
    const Blocks& b = blocks.back();
    torch::Tensor sum;
    for (int r = 0; r < kRanks; ++r) {
      const torch::Tensor h =
          torch::tanh(b.first->forward(x.narrow(0, r * kRowsPerRank, kRowsPerRank)));
      const torch::Tensor loss = use(b, h, r == 1).square().mean() / kRanks;
      sum = sum.defined() ? sum + loss : loss;
    }
    sum.backward();
    expect_gradients(collected.values(), b);
  }
}

TEST(ShardedUse, TwoForwardsInOneLoss) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        const torch::Tensor y = forward(fsdp, b, x);
        const torch::Tensor z = forward(fsdp, b, fsdp.forward(b.side, y));
        (y.square().mean() + z.square().mean()).backward();
      },
      [](const Blocks& b, const torch::Tensor& x) {
        const torch::Tensor y = forward(b, x);
        const torch::Tensor z = forward(b, b.side->forward(y));
        (y.square().mean() + z.square().mean()).backward();
      });
}

TEST(ShardedUse, TwoLossesOneAfterTheOther) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        const torch::Tensor y = forward(fsdp, b, x), z = forward(fsdp, b, 2 * x);
        y.square().mean().backward();
        z.square().mean().backward();
      },
      [](const Blocks& b, const torch::Tensor& x) {
        (forward(b, x).square().mean() + forward(b, 2 * x).square().mean()).backward();
      });
}

TEST(ShardedUse, AccumulationWithoutSynchronising) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        {
          const auto local = fsdp.no_sync();
          forward(fsdp, b, 3 * x).square().mean().backward();
          fsdp.forward(b.side, x).square().mean().backward();
          EXPECT_FALSE(fsdp.shards().front().tensor.grad().defined());
        }
        forward(fsdp, b, x).square().mean().backward();
      },
      [](const Blocks& b, const torch::Tensor& x) {
        (forward(b, x).square().mean() + forward(b, 3 * x).square().mean() +
         b.side->forward(x).square().mean())
            .backward();
      });
}

TEST(ShardedUse, EvaluationLeavesNoTrace) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        {
          const torch::NoGradGuard no_grad;
          forward(fsdp, b, x);
        }
        const torch::Tensor dropped = forward(fsdp, b, x);  // a graph that nobody uses
        forward(fsdp, b, x).square().mean().backward();
      },
      [](const Blocks& b, const torch::Tensor& x) { forward(b, x).square().mean().backward(); });
}

TEST(ShardedUse, FrozenBlocksAndFrozenParameters) {
  const auto freeze = [](const Blocks& b) {
    b.first->weight.set_requires_grad(false);
    b.side->weight.set_requires_grad(false);
    b.side->bias.set_requires_grad(false);
  };
  for (const int stage : {2, 3}) {
    const auto blocks = make_blocks();
    const torch::Tensor x = inputs();
    Collected collected;
    for (const Blocks& b : blocks) freeze(b);
    test::on_ranks(kRanks, [&](comm::Communicator& c) {
      const Blocks& b = blocks[static_cast<std::size_t>(c.rank())];
      FullyShardedDataParallel fsdp(c, {.stage = stage});
      shard_all(fsdp, b);
      for (int i = 0; i < 2; ++i) {  // the second finds the first's state
        fsdp.zero_grad();
        forward(fsdp, b,
                fsdp.forward(b.side,
                             forward(fsdp, b, x.narrow(0, c.rank() * kRowsPerRank, kRowsPerRank))))
            .square()
            .mean()
            .backward();
      }
      collected.add(fsdp);
    });
    const Blocks& b = blocks.back();
    forward(b, b.side->forward(forward(b, x))).square().mean().backward();
    expect_gradients(collected.values(), b);
  }
}

// Rank 0 has no samples: once it computes an empty batch, once it computes nothing.
TEST(ShardedUse, RanksWithoutSamples) {
  for (const bool join : {false, true}) {
    for (const int stage : {1, 3}) {
      const test::Problem problem = test::gpt_problem();
      std::vector<std::shared_ptr<model::Chain>> models;
      for (int r = 0; r <= kRanks; ++r) models.push_back(problem.model(1));
      const test::Batch all = problem.batches(1, kRanks - 1).front();
      const auto reference = models.back();
      OptimizerOptions sgd{.lr = 0.1};
      const auto alone = make_optimizer(sgd, trainable_parameters(*reference));
      for (int step = 0; step < 2; ++step) {
        model::cross_entropy(reference->forward(all.x), all.target).backward();
        throw_if_error(alone->step(sgd.lr));
        alone->zero_grad();
      }
      test::on_ranks(kRanks, [&](comm::Communicator& c) {
        const auto model = models[static_cast<std::size_t>(c.rank())];
        FullyShardedDataParallel fsdp(c, model, {.stage = stage});
        const auto optimizer = fsdp.make_optimizer(sgd);
        const bool idle = c.rank() == 0;
        fsdp.set_weight(idle ? 0 : 1);
        for (int step = 0; step < 2; ++step) {
          if (idle && join) {
            fsdp.join_step();
          } else {
            const test::Batch mine = all.rows(idle ? 0 : c.rank() - 1, idle ? 0 : 1);
            model::cross_entropy(fsdp.forward(mine.x), mine.target).backward();
          }
          fsdp.step(*optimizer, sgd.lr);
          fsdp.zero_grad();
        }
        const auto whole = fsdp.gathered();
        for (const auto& p : model->named_parameters()) {
          EXPECT_TRUE(
              torch::allclose(p.value(), reference->named_parameters()[p.key()], 1e-10, 1e-12))
              << p.key() << ", join " << join << ", stage " << stage;
        }
      });
    }
  }
}

TEST(ShardedUse, SequentialAndAnOptimizerOfLibtorch) {
  const auto build = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    torch::nn::Sequential net(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 2));
    net->to(torch::kFloat64);
    return net;
  };
  std::vector<torch::nn::Sequential> nets;
  for (int r = 0; r < kRanks; ++r) nets.push_back(build(1 + static_cast<std::uint64_t>(r)));
  torch::nn::Sequential reference = build(1);
  const torch::Tensor x = inputs();
  torch::optim::Adam alone(reference->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) {
    alone.zero_grad();
    reference->forward(x).square().mean().backward();
    alone.step();
  }
  test::on_ranks(kRanks, [&](comm::Communicator& c) {
    const auto net = nets[static_cast<std::size_t>(c.rank())];
    FullyShardedDataParallel fsdp(c, net);
    std::vector<torch::Tensor> shards;
    for (const NamedParameter& p : fsdp.shards()) shards.push_back(p.tensor);
    torch::optim::Adam optimizer(shards, 0.01);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      fsdp.forward(x.narrow(0, c.rank() * kRowsPerRank, kRowsPerRank)).square().mean().backward();
      optimizer.step();
    }
    const auto whole = fsdp.gathered();
    for (const auto& p : net->named_parameters()) {
      EXPECT_TRUE(torch::allclose(p.value(), reference->named_parameters()[p.key()], 1e-10, 1e-12));
    }
  });
}

TEST(ShardedUse, SameAsReplicatedInFloat32) {
  test::Problem problem = test::cnn_problem();
  problem.type = torch::kFloat32;
  std::vector<std::shared_ptr<model::Chain>> sharded, replicated;
  for (int r = 0; r < kRanks; ++r) {
    sharded.push_back(problem.model(1));
    replicated.push_back(problem.model(1));
  }
  const auto batches = problem.batches(6, kRanks * kRowsPerRank);
  const OptimizerOptions sgd{.lr = 0.05, .momentum = 0.9};
  test::on_ranks(kRanks, [&](comm::Communicator& c) {
    const auto a = sharded[static_cast<std::size_t>(c.rank())],
               b = replicated[static_cast<std::size_t>(c.rank())];
    FullyShardedDataParallel fsdp(c, a);
    DistributedDataParallel ddp(c, b);
    const auto of_a = fsdp.make_optimizer(sgd);
    const auto of_b = make_optimizer(sgd, trainable_parameters(*b));
    for (const test::Batch& all : batches) {
      const test::Batch mine = all.rows(c.rank() * kRowsPerRank, kRowsPerRank);
      const auto loss_a = model::cross_entropy(fsdp.forward(mine.x), mine.target),
                 loss_b = model::cross_entropy(b->forward(mine.x), mine.target);
      EXPECT_NEAR(loss_a.item<double>(), loss_b.item<double>(), 1e-5);
      loss_a.backward();
      loss_b.backward();
      fsdp.step(*of_a, sgd.lr);
      throw_if_error(of_b->step(sgd.lr));
      fsdp.zero_grad();
      of_b->zero_grad();
    }
  });
}

// bfloat16 is computed and reduced, float32 is updated: the loss follows that of float32.
TEST(ShardedUse, MixedPrecisionFollowsFloat32) {
  test::Problem problem = test::mlp_problem();
  problem.type = torch::kFloat32;
  const auto batches = problem.batches(30, kRanks * kRowsPerRank);
  const auto final_loss = [&](const ShardPrecision& precision) {
    std::vector<std::shared_ptr<model::Chain>> models;
    for (int r = 0; r < kRanks; ++r) models.push_back(problem.model(1));
    std::mutex mutex;
    double sum = 0;
    test::on_ranks(kRanks, [&](comm::Communicator& c) {
      FullyShardedDataParallel fsdp(c, models[static_cast<std::size_t>(c.rank())],
                                    {.precision = precision});
      const auto optimizer = fsdp.make_optimizer({.lr = 0.1});
      for (std::size_t i = 0; i < batches.size(); ++i) {
        const test::Batch mine = batches[i % 3].rows(c.rank() * kRowsPerRank, kRowsPerRank);
        const torch::Tensor y = fsdp.forward(mine.x);
        EXPECT_EQ(y.scalar_type(), torch::kFloat32);
        const torch::Tensor loss = model::cross_entropy(y, mine.target);
        loss.backward();
        fsdp.step(*optimizer, 0.1);
        fsdp.zero_grad();
        const std::lock_guard lock(mutex);
        if (i + 3 >= batches.size()) sum += loss.item<double>();
      }
      for (const NamedParameter& p : fsdp.shards()) {
        EXPECT_EQ(p.tensor.scalar_type(), torch::kFloat32);
      }
    });
    return sum / (3 * kRanks);
  };
  const double wanted = final_loss({});
  EXPECT_NEAR(final_loss({.compute = torch::kBFloat16}), wanted, 0.02 * wanted);
  EXPECT_NEAR(final_loss({.compute = torch::kBFloat16, .reduce = torch::kBFloat16}), wanted,
              0.02 * wanted);
}

TEST(ShardedUse, PiecesMakeUpEveryParameterOnce) {
  const auto problem = test::gpt_problem();
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int r = 0; r < kRanks; ++r)
    models.push_back(problem.model(1 + static_cast<std::uint64_t>(r)));
  const Values wanted = test::values_of(*models[0]);
  Values got;
  std::mutex mutex;
  test::on_ranks(kRanks, [&](comm::Communicator& c) {
    FullyShardedDataParallel fsdp(c, models[static_cast<std::size_t>(c.rank())]);
    const std::lock_guard lock(mutex);
    for (const TensorPiece& piece : fsdp.state()) {
      auto& whole = got[piece.name];
      if (!whole.defined()) whole = torch::full(piece.shape, std::nan(""), torch::kFloat64);
      torch::Tensor place = whole.view(-1).slice(0, piece.begin, piece.end);
      EXPECT_TRUE(place.isnan().all().item<bool>()) << piece.name;
      place.copy_(piece.values);
    }
  });
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) EXPECT_TRUE(got.at(name).equal(value)) << name;
}

TEST(ShardedUse, APassThatFailsBlocksNoLaterOne) {
  compare(
      [](auto&, auto& fsdp, const Blocks& b, const torch::Tensor& x) {
        torch::Tensor h = fsdp.forward(b.first, x);
        h.register_hook(
            [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("hook"); });
        EXPECT_THROW(fsdp.forward(b.second, h).sum().backward(), std::runtime_error);
        fsdp.zero_grad();
        forward(fsdp, b, x).square().mean().backward();
      },
      [](const Blocks& b, const torch::Tensor& x) { forward(b, x).square().mean().backward(); });
}

TEST(ShardedUse, AFailureLeavesBackwardAsAnError) {
  for (const int prefetch : {0, 1}) {
    const auto blocks = make_blocks();
    const torch::Tensor x = inputs();
    test::on_ranks(kRanks, [&](comm::Communicator& c) {
      const Blocks& b = blocks[static_cast<std::size_t>(c.rank())];
      FullyShardedDataParallel fsdp(c, {.prefetch = prefetch});
      shard_all(fsdp, b);
      try {
        const torch::Tensor loss = forward(fsdp, b, x).sum();
        if (c.rank() == 2) return c.fail(invalid_argument("rank 2 has had enough"));
        loss.backward();
        ADD_FAILURE() << "backward() returned";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("rank 2 has had enough"), std::string::npos)
            << e.what();
      }
    });
  }
}

TEST(ShardedUse, WhatCannotBeIsRefusedWithTheRemedy) {
  const auto blocks = make_blocks();
  test::on_ranks(1, [&](comm::Communicator& c) {
    const auto message_of = [](const auto& body) -> std::string {
      try {
        body();
      } catch (const Error& e) {
        return e.what();
      }
      return "nothing was thrown";
    };
    const auto expect = [&](const auto& body, const std::string& part) {
      const std::string message = message_of(body);
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect([&] { FullyShardedDataParallel(c, ShardingOptions{.stage = 4}); },
           "a stage is 1, 2 or 3");
    FullyShardedDataParallel fsdp(c);
    fsdp.shard("first", blocks[0].first);
    const torch::Tensor x = inputs();
    expect([&] { fsdp.forward(blocks[0].second, x); }, "give it to shard() first");
    expect([&] { fsdp.forward(x); }, "call forward(block, x)");
    expect([&] { fsdp.set_weight(-1); }, "must be a number >= 0");
    expect([&] { fsdp.clip_gradients(0); }, "give one greater than 0");
    FusedOptimizer other({}, {});
    expect([&] { fsdp.step(other, 0.1); }, "is not from make_optimizer()");
  });
}

}  // namespace
}  // namespace stormo::train
