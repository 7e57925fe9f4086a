// Batch normalisation over ranks, against torch::nn::BatchNorm on the union of their batches.
#include <stormo/train/wrap/sync_batch_norm.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/state/checkpoint.h>
#include <stormo/train/world/run_replicas.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kChannels = 3;

struct NormCase {
  std::vector<std::int64_t> rows;   // of each rank
  std::vector<std::int64_t> inner;  // what follows the channels
  torch::nn::BatchNormOptions options{kChannels};
  torch::ScalarType type = torch::kFloat64;
  double tolerance = 1e-10;
  double offset = 1;  // mean of the input
};

torch::Tensor normal(const NormCase& c, std::int64_t rows, double offset) {
  std::vector<std::int64_t> shape = {rows, kChannels};
  shape.insert(shape.end(), c.inner.begin(), c.inner.end());
  return (torch::randn(shape, torch::kFloat64) + offset).to(c.type);
}

std::shared_ptr<torch::nn::Module> batch_norm(const NormCase& c) {
  if (c.inner.size() < 2) return std::make_shared<torch::nn::BatchNorm1dImpl>(c.options);
  if (c.inner.size() == 2) return std::make_shared<torch::nn::BatchNorm2dImpl>(c.options);
  return std::make_shared<torch::nn::BatchNorm3dImpl>(c.options);
}

torch::Tensor through(torch::nn::Module& module, const torch::Tensor& x) {
  if (auto* m = dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) return m->forward(x);
  if (auto* m = dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) return m->forward(x);
  if (auto* m = dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module)) return m->forward(x);
  return dynamic_cast<SyncBatchNormImpl&>(module).forward(x);
}

/// Other values than those that layers begin with, equal in both.
void set_affine(torch::nn::Module& module, torch::ScalarType type) {
  const torch::NoGradGuard no_grad;
  module.to(type);
  for (auto& p : module.parameters()) {
    p.copy_(torch::linspace(0.5, 1.5, kChannels, torch::kFloat64));
  }
}

void expect_close(const torch::Tensor& got, const torch::Tensor& wanted, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  if (got.numel() == 0) return;
  const double worst = (got - wanted).abs().max().item<double>();
  EXPECT_LE(worst, tolerance * std::max(1.0, wanted.abs().max().item<double>())) << what;
}

// Three steps, then an evaluation. The loss is a sum, so that gradients add up.
void compare_with_one_device(const NormCase& c) {
  const int ranks = static_cast<int>(c.rows.size());
  const std::int64_t all = std::accumulate(c.rows.begin(), c.rows.end(), std::int64_t{0});
  torch::manual_seed(1);
  std::vector<torch::Tensor> inputs, factors;
  for (int step = 0; step < 3; ++step) {
    inputs.push_back(normal(c, all, c.offset).requires_grad_());
    factors.push_back(normal(c, all, 0));
  }
  const auto alone = batch_norm(c);
  set_affine(*alone, c.type);
  std::vector<torch::Tensor> outputs;
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    outputs.push_back(through(*alone, inputs[step]));
    (outputs.back() * factors[step]).sum().backward();
  }
  alone->eval();
  outputs.push_back(through(*alone, inputs.front()));

  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<torch::Tensor>> got(n), input_gradients(n);
  std::vector<std::shared_ptr<SyncBatchNormImpl>> layers(n);
  run_replicas(ranks, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const auto mine = [&](const torch::Tensor& t) {
      return t.detach().split_with_sizes(c.rows)[r];
    };
    const auto layer =
        std::make_shared<SyncBatchNormImpl>(c.options, std::make_shared<SyncBatchNormGroup>(world));
    set_affine(*layer, c.type);
    for (std::size_t step = 0; step < inputs.size(); ++step) {
      const torch::Tensor x = mine(inputs[step]).clone().requires_grad_();
      got[r].push_back(layer->forward(x));
      (got[r].back() * mine(factors[step])).sum().backward();
      input_gradients[r].push_back(x.grad());
      got[r].back() = got[r].back().detach();
    }
    layer->eval();
    if (c.options.track_running_stats()) got[r].push_back(layer->forward(mine(inputs.front())));
    layers[r] = std::make_shared<SyncBatchNormImpl>(c.options, nullptr);  // outlives the group
    layers[r]->to(c.type);
    for (const auto& p : layer->named_parameters()) {
      layers[r]->named_parameters()[p.key()].mutable_grad() = p.value().grad();
    }
    for (const auto& b : layer->named_buffers())
      layers[r]->named_buffers()[b.key()].copy_(b.value());
  });

  const auto gather = [](const auto& by_rank, std::size_t step) {
    std::vector<torch::Tensor> parts;
    for (const auto& of_rank : by_rank) parts.push_back(of_rank[step]);
    return torch::cat(parts);
  };
  for (std::size_t i = 0; i < got.front().size(); ++i) {
    expect_close(gather(got, i), outputs[i], c.tolerance, "output " + std::to_string(i));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_close(gather(input_gradients, i), inputs[i].grad(), c.tolerance,
                 "input gradient " + std::to_string(i));
  }
  for (const auto& p : alone->named_parameters()) {
    torch::Tensor sum = torch::zeros_like(p.value().grad());
    for (const auto& layer : layers) sum += layer->named_parameters()[p.key()].grad();
    expect_close(sum, p.value().grad(), c.tolerance, p.key());
  }
  for (const auto& b : alone->named_buffers()) {
    for (const auto& layer : layers) {
      expect_close(layer->named_buffers()[b.key()], b.value(), c.tolerance, b.key());
      EXPECT_TRUE(
          torch::equal(layer->named_buffers()[b.key()], layers.front()->named_buffers()[b.key()]));
    }
  }
}

TEST(SyncBatchNorm, IsBatchNormOnTheUnionOfBatches) {
  const std::vector<std::vector<std::int64_t>> splits = {{6}, {5, 1}, {4, 0, 3}, {1, 0, 2, 4}};
  for (const auto& rows : splits) {
    for (const std::vector<std::int64_t>& inner :
         std::vector<std::vector<std::int64_t>>{{}, {4}, {2, 3}, {2, 1, 2}}) {
      SCOPED_TRACE(std::to_string(rows.size()) + " ranks, " + std::to_string(2 + inner.size()) +
                   " dimensions");
      compare_with_one_device({.rows = rows, .inner = inner});
    }
  }
}

TEST(SyncBatchNorm, HasTheOptionsOfBatchNorm) {
  using Options = torch::nn::BatchNormOptions;
  const std::vector<Options> all = {
      Options(kChannels).momentum(std::nullopt), Options(kChannels).momentum(0.7).eps(0.5),
      Options(kChannels).affine(false), Options(kChannels).track_running_stats(false)};
  for (const Options& options : all) {
    compare_with_one_device({.rows = {2, 0, 5}, .inner = {3}, .options = options});
  }
}

// In float32, E[x^2] - E[x]^2 would have no correct digit here.
TEST(SyncBatchNorm, IsStableFarFromZero) {
  compare_with_one_device(
      {.rows = {5, 3}, .inner = {8}, .type = torch::kFloat32, .tolerance = 1e-3, .offset = 3000});
}

TEST(SyncBatchNorm, KeepsTheTypeOfItsInput) {
  const torch::Tensor x = torch::randn({6, kChannels}).to(torch::kBFloat16);
  torch::nn::BatchNorm1d alone(kChannels);
  const torch::Tensor wanted = alone->forward(x.to(torch::kFloat32)).to(torch::kBFloat16);
  run_replicas(2, [&](comm::Communicator& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels),
                       std::make_shared<SyncBatchNormGroup>(world));
    const torch::Tensor y = norm(x.narrow(0, 3 * world.rank(), 3));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::allclose(y, wanted.narrow(0, 3 * world.rank(), 3), 1e-2, 1e-2));
  });
}

/// Layers on both sides, for gradients that pass through.
torch::nn::Sequential net_with(const torch::nn::AnyModule& norm) {
  torch::manual_seed(2);
  torch::nn::Sequential net(torch::nn::Linear(6, kChannels));
  net->push_back(norm);
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(kChannels, 2));
  net->to(torch::kFloat64);
  return net;
}

// Each rank's loss is the mean over its own rows. Buckets are reduced in the middle of backward,
// before or after the exchange of the layer: on the last rank, which does not use the shift, the
// first one has to wait for the end.
TEST(SyncBatchNorm, TrainsWithOverlappedBucketsAsOneDevice) {
  const std::vector<std::int64_t> rows = {4, 0, 3};
  torch::manual_seed(6);
  const torch::Tensor x = torch::randn({7, 6}, torch::kFloat64);
  const torch::Tensor target = torch::randn({7, 2}, torch::kFloat64);
  const torch::Tensor shifted = torch::tensor({1., 1., 1., 1., 0., 0., 0.}).view({7, 1});
  const auto with_shift = [](torch::nn::Sequential net) {
    net->register_parameter("shift", torch::zeros({2}, torch::kFloat64));
    return net;
  };
  const auto steps = [](torch::nn::Sequential net, const auto& loss) {
    torch::optim::SGD sgd(net->parameters(), 0.2);
    for (int step = 0; step < 10; ++step) {
      sgd.zero_grad();
      loss(net->named_parameters()["shift"]).backward();
      sgd.step();
    }
  };
  auto wanted = with_shift(net_with(torch::nn::AnyModule(torch::nn::BatchNorm1d(kChannels))));
  steps(wanted, [&](const torch::Tensor& shift) {
    return torch::mse_loss(wanted->forward(x) + shift * shifted, target);
  });

  std::vector<torch::nn::Sequential> nets;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    nets.push_back(net_with(torch::nn::AnyModule(torch::nn::BatchNorm1d(kChannels))));
  }
  run_replicas(3, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const torch::Tensor my_x = x.split_with_sizes(rows)[r], my_y = target.split_with_sizes(rows)[r];
    const auto group = std::make_shared<SyncBatchNormGroup>(world);
    auto net = with_shift(convert_sync_batch_norm(nets[r], group));
    DistributedDataParallel ddp(world, net, {.overlap = Overlap::buckets(1)});
    ddp.set_weight(static_cast<double>(rows[r]));
    group->set_weight(static_cast<double>(rows[r]));
    steps(net, [&](const torch::Tensor& shift) {
      const torch::Tensor y = net->forward(my_x);
      return torch::mse_loss(r == 2 ? y : y + shift, my_y);
    });
    const auto got = named_state(*net);
    for (const auto& [name, value] : named_state(*wanted)) {
      expect_close(got.at(name), value, 1e-10, name);
    }
  });
}

TEST(SyncBatchNorm, ConvertsASequential) {
  run_replicas(1, [](comm::Communicator& world) {
    const auto group = std::make_shared<SyncBatchNormGroup>(world);
    torch::nn::BatchNorm1d norm(kChannels);
    auto net = net_with(torch::nn::AnyModule(norm));
    norm->weight.set_requires_grad(false);
    net->forward(torch::randn({5, 6}, torch::kFloat64));
    net->eval();
    auto converted = convert_sync_batch_norm(net, group);
    EXPECT_EQ(converted->named_parameters().keys(), net->named_parameters().keys());
    const auto layer = std::dynamic_pointer_cast<SyncBatchNormImpl>(converted->ptr(1));
    ASSERT_NE(layer, nullptr);
    EXPECT_FALSE(layer->is_training());
    EXPECT_FALSE(layer->weight.requires_grad());
    EXPECT_TRUE(torch::equal(layer->running_mean, norm->running_mean));
    EXPECT_EQ(converted->ptr(0), net->ptr(0));
    const torch::Tensor x = torch::randn({4, 6}, torch::kFloat64);
    EXPECT_TRUE(torch::equal(converted->forward(x), net->forward(x)));
  });
}

/// A BatchNorm where no conversion reaches it.
struct NormInsideImpl : torch::nn::Module {
  NormInsideImpl() : norm(register_module("norm", torch::nn::BatchNorm2d(kChannels))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm2d norm;
};

TEST(SyncBatchNorm, RefusesWhatCannotBe) {
  run_replicas(2, [](comm::Communicator& world) {
    const auto group = std::make_shared<SyncBatchNormGroup>(world);
    SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), group);
    EXPECT_THROW(norm(torch::randn({4, kChannels + 1})), Error);
    EXPECT_THROW(norm(torch::randn({kChannels})), Error);
    EXPECT_THROW(norm(torch::randn({1 - world.rank(), kChannels})), Error);  // one value
    EXPECT_THROW(group->set_weight(-1), Error);
    const torch::Tensor x = torch::randn({4, kChannels}).requires_grad_();
    const torch::Tensor loss = norm(x).square().sum();
    EXPECT_THROW(torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true), Error);
    torch::nn::Sequential net(std::make_shared<NormInsideImpl>());
    EXPECT_THROW(convert_sync_batch_norm(net, group), Error);
  });
}

TEST(SyncBatchNorm, AFailureLeavesBackwardAsAnError) {
  EXPECT_THROW(run_replicas(2,
                            [](comm::Communicator& world) {
                              const auto group = std::make_shared<SyncBatchNormGroup>(world);
                              SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), group);
                              const torch::Tensor y = norm(torch::randn({4, kChannels}));
                              if (world.rank() == 1) throw std::out_of_range("enough");
                              EXPECT_THROW(y.sum().backward(), Error);
                            }),
               std::out_of_range);
}

}  // namespace
}  // namespace stormo::train
