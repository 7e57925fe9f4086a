#include <stormo/train/optimizer/fused_optimizer.h>

#include <array>
#include <barrier>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/optimizer/optimizer_archive.h>

#include "toy.h"

namespace stormo::train {
namespace {

using Kind = OptimizerOptions::Kind;
using test::make_toy_module;
using test::ToyModule;

constexpr Kind kKinds[] = {Kind::kSgd,     Kind::kAdamW, Kind::kAdam, Kind::kAdagrad,
                           Kind::kRmsProp, Kind::kLion,  Kind::kLars, Kind::kLamb};

void backward(ToyModule& module, int step) {
  module.zero_grad();
  torch::manual_seed(1000 + static_cast<std::uint64_t>(step));
  module.forward(torch::randn({7, 20}, torch::kFloat64)).square().sum().backward();
}

void expect_equal(const ToyModule& a, const ToyModule& b, const std::string& what) {
  for (const auto& p : a.named_parameters()) {
    EXPECT_TRUE(torch::equal(p.value(), b.named_parameters()[p.key()])) << what << " " << p.key();
  }
}

/// Ours and an optimizer of torch::optim give the same weights after ten steps.
void expect_as_torch(
    const OptimizerOptions& options,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>&
        make) {
  auto ours = make_toy_module(5), theirs = make_toy_module(5);
  FusedOptimizer optimizer(options, trainable_parameters(*ours));
  const auto reference = make(theirs->parameters());
  for (int step = 0; step < 10; ++step) {
    backward(*ours, step);
    ASSERT_TRUE(optimizer.step(options.lr).ok());
    backward(*theirs, step);
    reference->step();
  }
  for (const auto& p : ours->named_parameters()) {
    EXPECT_TRUE(torch::allclose(p.value(), theirs->named_parameters()[p.key()], 1e-7, 1e-12))
        << p.key();
  }
}

TEST(FusedOptimizer, FollowsTorchOptim) {
  for (const double decay : {0.0, 0.02}) {
    const double lr = 0.003;
    expect_as_torch(
        {.lr = lr, .momentum = 0.9, .nesterov = true, .weight_decay = decay}, [&](auto p) {
          return std::make_unique<torch::optim::SGD>(
              p, torch::optim::SGDOptions(lr).momentum(0.9).nesterov(true).weight_decay(decay));
        });
    expect_as_torch({.kind = Kind::kAdam, .lr = lr, .weight_decay = decay}, [&](auto p) {
      return std::make_unique<torch::optim::Adam>(
          p, torch::optim::AdamOptions(lr).weight_decay(decay));
    });
    expect_as_torch({.kind = Kind::kAdagrad, .lr = lr, .weight_decay = decay, .epsilon = 1e-10},
                    [&](auto p) {
                      return std::make_unique<torch::optim::Adagrad>(
                          p, torch::optim::AdagradOptions(lr).weight_decay(decay));
                    });
    for (const double momentum : {0.0, 0.8}) {
      expect_as_torch(
          {.kind = Kind::kRmsProp, .lr = lr, .momentum = momentum, .weight_decay = decay},
          [&](auto p) {
            return std::make_unique<torch::optim::RMSprop>(
                p, torch::optim::RMSpropOptions(lr).momentum(momentum).weight_decay(decay));
          });
    }
  }
}

/// Two owners, as threads, that add numbers up.
class Pair {
 public:
  SumOverRanks sum_of(int rank) {
    return [this, rank](std::span<double> values) -> Status {
      mine_[static_cast<std::size_t>(rank)].assign(values.begin(), values.end());
      barrier_.arrive_and_wait();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = mine_[0][i] + mine_[1][i];
      barrier_.arrive_and_wait();
      return {};
    };
  }

 private:
  std::barrier<> barrier_{2};
  std::array<std::vector<double>, 2> mine_;
};

/// The first or second part of every parameter; the parts are of unequal size, some empty.
std::vector<OwnedRange> part(const std::vector<NamedParameter>& parameters, int rank) {
  std::vector<OwnedRange> out;
  for (const NamedParameter& p : parameters) {
    const std::int64_t n = p.tensor.numel(), cut = n < 10 ? 0 : n / 3;
    out.push_back(rank == 0 ? OwnedRange{0, cut} : OwnedRange{cut, n});
  }
  return out;
}

TEST(FusedOptimizer, OwnersOfRangesDoWhatOneOwnerDoes) {
  for (const Kind kind : kKinds) {
    const OptimizerOptions options{.kind = kind, .lr = 0.01, .momentum = 0.9, .weight_decay = 0.01};
    auto whole = make_toy_module(5), shared = make_toy_module(5);
    const auto parameters = trainable_parameters(*shared);
    FusedOptimizer one(options, trainable_parameters(*whole));
    Pair pair;
    FusedOptimizer first(options, parameters, part(parameters, 0), pair.sum_of(0));
    FusedOptimizer second(options, parameters, part(parameters, 1), pair.sum_of(1));
    for (int step = 0; step < 4; ++step) {
      backward(*whole, step);
      backward(*shared, step);
      const double norm = *one.gradient_norm();
      ASSERT_TRUE(one.step({.lr = 0.01, .gradient_scale = 0.5}, 0, one.parameters().size()).ok());
      const auto own = [&](FusedOptimizer& o) {
        EXPECT_NEAR(*o.gradient_norm() / norm, 1, 1e-14);
        EXPECT_TRUE(o.step({.lr = 0.01, .gradient_scale = 0.5}, 0, o.parameters().size()).ok());
      };
      std::thread other([&] { own(second); });
      own(first);
      other.join();
    }
    if (optim::needs_norms(kind)) {
      for (const auto& p : whole->named_parameters()) {
        EXPECT_TRUE(torch::allclose(p.value(), shared->named_parameters()[p.key()], 1e-12, 1e-15));
      }
    } else {
      expect_equal(*whole, *shared, "kind " + std::to_string(static_cast<int>(kind)));
    }
  }
}

TEST(FusedOptimizer, ThreadsDoNotChangeTheBits) {
  const int before = at::get_num_threads();
  for (const Kind kind : {Kind::kAdamW, Kind::kLamb}) {
    std::vector<torch::Tensor> results;
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      torch::manual_seed(3);
      const torch::Tensor p = torch::randn({700, 300}), small = torch::randn({17});
      p.mutable_grad() = torch::randn({700, 300});
      small.mutable_grad() = torch::randn({17});
      FusedOptimizer optimizer({.kind = kind}, {{"p", p}, {"small", small}});
      for (int step = 0; step < 3; ++step) ASSERT_TRUE(optimizer.step(0.01).ok());
      results.push_back(torch::cat({p.flatten(), small}));
      results.push_back(torch::tensor(*optimizer.gradient_norm(), torch::kFloat64));
    }
    EXPECT_TRUE(torch::equal(results[0], results[2]));
    EXPECT_TRUE(torch::equal(results[1], results[3]));
  }
  at::set_num_threads(before);
}

TEST(FusedOptimizer, SumsGradientsWhereTheyAre) {
  const torch::Tensor p = torch::randn({50}), q = p.clone();
  const torch::Tensor a = torch::randn({50}), b = torch::randn({50});
  FusedOptimizer shared({.kind = Kind::kAdamW}, {{"p", p}}, {{10, 40}});
  const std::array sources{optim::GradientTerm{a.data_ptr<float>() + 10, 0.25},
                           optim::GradientTerm{b.data_ptr<float>() + 10, 0.75}};
  const RangeGradient gradient{.sources = sources};
  ASSERT_TRUE(shared.step(StepRate{.lr = 0.1}, {&gradient, 1}).ok());

  FusedOptimizer replica({.kind = Kind::kAdamW}, {{"q", q}});
  q.mutable_grad() = a * 0.25 + b * 0.75;
  ASSERT_TRUE(replica.step(0.1).ok());
  EXPECT_TRUE(torch::allclose(p.slice(0, 10, 40), q.slice(0, 10, 40), 1e-5, 1e-6));
  EXPECT_FALSE(torch::equal(p.slice(0, 0, 10), q.slice(0, 0, 10)));  // not its own
  EXPECT_NEAR(*shared.gradient_norm({&gradient, 1}),
              q.grad().slice(0, 10, 40).norm().item<double>(), 1e-5);
}

TEST(FusedOptimizer, TakesStridesAndSparseGradients) {
  const torch::Tensor dense = torch::randn({6, 4});
  const torch::Tensor strided = dense.clone().t().contiguous().t();
  ASSERT_FALSE(strided.is_contiguous());
  dense.mutable_grad() = torch::randn({6, 4});
  strided.mutable_grad() = dense.grad().clone();
  torch::Tensor table = torch::randn({5, 3}), table_of_dense = table.clone();
  table.set_requires_grad(true);
  torch::embedding(table, torch::tensor({1, 3, 1}), -1, false, /*sparse=*/true).sum().backward();
  ASSERT_TRUE(table.grad().is_sparse());
  table_of_dense.mutable_grad() = table.grad().to_dense();
  const auto version = table._version();
  FusedOptimizer plain({.kind = Kind::kAdamW}, {{"w", dense}, {"t", table_of_dense}});
  FusedOptimizer odd({.kind = Kind::kAdamW}, {{"w", strided}, {"t", table}});
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(plain.step(0.1).ok());
    ASSERT_TRUE(odd.step(0.1).ok());
  }
  EXPECT_TRUE(torch::equal(dense, strided));
  EXPECT_TRUE(torch::equal(table, table_of_dense));
  EXPECT_GT(table._version(), version);  // autograd notices what happened to saved tensors
}

TEST(FusedOptimizer, KeepsMasterWeightsOf16BitParameters) {
  for (const auto type : {torch::kBFloat16, torch::kFloat16}) {
    const torch::Tensor half = torch::randn({100}).to(type);
    const torch::Tensor full = half.to(torch::kFloat32);
    FusedOptimizer mixed({.kind = Kind::kSgd}, {{"w", half}});
    FusedOptimizer exact({.kind = Kind::kSgd}, {{"w", full}});
    for (int step = 0; step < 20; ++step) {  // steps too small for 16 bits alone
      half.mutable_grad() = torch::full({100}, 1e-3).to(type);
      full.mutable_grad() = half.grad().to(torch::kFloat32);
      ASSERT_TRUE(mixed.step(0.5).ok());
      ASSERT_TRUE(exact.step(0.5).ok());
    }
    EXPECT_TRUE(torch::equal(mixed.state().at("optimizer.master.w"), full));
    EXPECT_TRUE(torch::equal(half, full.to(type)));
  }
}

TEST(FusedOptimizer, PiecesLoadIntoOtherRanges) {
  const OptimizerOptions options{.kind = Kind::kAdamW, .lr = 0.01};
  auto from = make_toy_module(5), to = make_toy_module(5);
  FusedOptimizer whole(options, trainable_parameters(*from));
  for (int step = 0; step < 3; ++step) {
    backward(*from, step);
    ASSERT_TRUE(whole.step(0.01).ok());
  }
  std::map<std::string, torch::Tensor> file;
  for (const auto& [name, t] : whole.state()) file.emplace(name, t.clone());
  {
    const torch::NoGradGuard no_grad;
    for (const auto& p : to->named_parameters()) {
      p.value().copy_(from->named_parameters()[p.key()]);
    }
  }
  const auto read = [&file](const std::string& name, std::int64_t begin,
                            std::int64_t end) -> Result<torch::Tensor> {
    return file.contains(name) ? file.at(name).flatten().slice(0, begin, end) : torch::Tensor();
  };
  const auto parameters = trainable_parameters(*to);
  FusedOptimizer first(options, parameters, part(parameters, 0));
  FusedOptimizer second(options, parameters, part(parameters, 1));
  ASSERT_TRUE(first.load_state(read).ok());
  ASSERT_TRUE(second.load_state(read).ok());

  // together the pieces are the file again
  std::map<std::string, std::int64_t> covered;
  for (const FusedOptimizer* o : {&first, &second}) {
    for (const TensorPiece& piece : o->state_pieces()) {
      EXPECT_EQ(piece.shape, file.at(piece.name).sizes().vec()) << piece.name;
      EXPECT_TRUE(torch::equal(piece.values,
                               file.at(piece.name).flatten().slice(0, piece.begin, piece.end)));
      covered[piece.name] += piece.end - piece.begin;
    }
  }
  ASSERT_EQ(covered.size(), file.size());
  for (const auto& [name, count] : covered) EXPECT_EQ(count, file.at(name).numel()) << name;

  EXPECT_THROW(static_cast<void>(second.state()), Error);
  backward(*from, 3);
  backward(*to, 3);
  ASSERT_TRUE(whole.step(0.01).ok());
  ASSERT_TRUE(first.step(0.01).ok());
  ASSERT_TRUE(second.step(0.01).ok());
  expect_equal(*from, *to, "after loading");
}

TEST(FusedOptimizer, RefusesWhatItCannotUpdate) {
  const torch::Tensor p = torch::zeros({4});
  const auto make = [](const torch::Tensor& t, OwnedRange range) {
    FusedOptimizer optimizer({}, {{"weight", t}}, {std::move(range)});
  };
  EXPECT_NO_THROW(make(p, {0, 4}));
  EXPECT_THROW(make(p, {0, 5}), Error);
  EXPECT_THROW(make(p, {3, 2}), Error);
  EXPECT_THROW(make(p, {0, 2, torch::zeros({3})}), Error);
  EXPECT_THROW(make(torch::zeros({4}, torch::kInt64), {0, 4}), Error);
}

TEST(FusedOptimizer, PassesAFailedSumOn) {
  const torch::Tensor p = torch::ones({4});
  p.mutable_grad() = torch::ones({4});
  FusedOptimizer optimizer({.kind = Kind::kLamb}, {{"p", p}}, {{0, 4}}, [](std::span<double>) {
    return Status(Code::kPeerLost, "rank 1 is gone");
  });
  EXPECT_EQ(optimizer.step(0.1).code(), Code::kPeerLost);
  EXPECT_EQ(optimizer.gradient_norm().status().code(), Code::kPeerLost);
}

TEST(OptimizerArchive, RoundTripIsBitwise) {
  auto a = make_toy_module(5), b = make_toy_module(5);
  torch::optim::Adam from(a->parameters(), 0.01), to(b->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) {
    backward(*a, step);
    from.step();
  }
  ASSERT_TRUE(load_archive(to, archive_of(from)).ok());
  {
    const torch::NoGradGuard no_grad;
    for (const auto& p : b->named_parameters()) p.value().copy_(a->named_parameters()[p.key()]);
  }
  backward(*a, 3);
  backward(*b, 3);
  from.step();
  to.step();
  expect_equal(*a, *b, "after loading");

  FusedOptimizer fused({.kind = Kind::kAdam}, trainable_parameters(*a));
  EXPECT_EQ(load_archive(to, fused.state()).code(), Code::kInvalidArgument);
  EXPECT_EQ(load_archive(to, {{"optimizer.archive", torch::zeros({9}, torch::kUInt8)}}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace stormo::train
