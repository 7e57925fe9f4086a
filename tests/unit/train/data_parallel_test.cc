// One module on several threads: gradients against the module alone on the whole batch.
#include <stormo/train/wrap/data_parallel.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/world/replica_threads.h>
#include <stormo/train/world/run_replicas.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

namespace stormo::train {
namespace {

/// With a weight that is used twice, and one that is not used.
struct TwiceNetImpl : torch::nn::Cloneable<TwiceNetImpl> {
  TwiceNetImpl() { TwiceNetImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 3));
    unused = register_parameter("unused", torch::ones({2}));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(first(torch::tanh(first(x)))));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor unused;
};
TORCH_MODULE(TwiceNet);

TwiceNet make_twice_net() {
  torch::manual_seed(3);
  return TwiceNet();
}

torch::Tensor rows_of(std::int64_t rows) {
  torch::manual_seed(4);
  return torch::randn({rows, 6}, torch::kFloat64);
}

std::uint64_t bytes_of(const torch::nn::Module& module) {
  std::uint64_t bytes = 0;
  for (const auto& p : module.parameters()) bytes += p.nbytes();
  for (const auto& b : module.buffers()) bytes += b.nbytes();
  return bytes;
}

void expect_near(const torch::Tensor& got, const torch::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(got.defined(), wanted.defined()) << what;
  if (wanted.defined()) {
    EXPECT_EQ(got.sizes(), wanted.sizes()) << what;
    EXPECT_TRUE(torch::allclose(got, wanted, 1e-10, 1e-12)) << what;
  }
}

void expect_same_gradients(const torch::nn::Module& got, const torch::nn::Module& wanted) {
  const auto named = got.named_parameters();
  for (const auto& p : wanted.named_parameters()) {
    expect_near(named[p.key()].grad(), p.value().grad(), p.key());
  }
}

TEST(DataParallel, GradientsAreThoseOfTheModuleAlone) {
  for (const int replicas : {1, 2, 4}) {
    for (const std::int64_t rows : {8, 7, 3, 1, 0}) {
      SCOPED_TRACE(std::to_string(replicas) + " replicas, " + std::to_string(rows) + " rows");
      TwiceNet alone = make_twice_net(), module = make_twice_net();
      DataParallel parallel(module, replicas);
      const torch::Tensor x = rows_of(rows).requires_grad_(), y = rows_of(rows).requires_grad_();
      for (int pass = 0; pass < 2; ++pass) {  // gradients accumulate
        const torch::Tensor wanted = alone->forward(x), got = parallel.forward(y);
        expect_near(got, wanted, "output");
        wanted.square().sum().backward();
        got.square().sum().backward();
      }
      expect_same_gradients(*module, *alone);
      expect_near(y.grad(), x.grad(), "input");
    }
  }
}

TEST(DataParallel, FollowsTheModuleAndCountsItsCopies) {
  TwiceNet alone = make_twice_net(), module = make_twice_net();
  DataParallel parallel(module, 4);
  torch::optim::SGD a(alone->parameters(), 0.1), b(module->parameters(), 0.1);
  const torch::Tensor x = rows_of(6);
  for (int step = 1; step <= 3; ++step) {
    const bool frozen = step == 3;
    for (const auto& net : {alone, module}) net->first->bias.set_requires_grad(!frozen);
    a.zero_grad();
    b.zero_grad();
    alone->forward(x).square().mean().backward();
    parallel.forward(x).square().mean().backward();
    expect_same_gradients(*module, *alone);
    a.step();
    b.step();
    EXPECT_EQ(parallel.bytes_copied(), static_cast<std::uint64_t>(step) * 3 * bytes_of(*module));
  }
  for (const auto& p : alone->named_parameters()) {
    expect_near(module->named_parameters()[p.key()], p.value(), p.key());
  }
  parallel.forward(rows_of(2));  // replicas without rows need no copy
  EXPECT_EQ(parallel.bytes_copied(), (3 * 3 + 1) * bytes_of(*module));
}

TEST(DataParallel, SeveralForwardsBeforeABackward) {
  TwiceNet alone = make_twice_net(), module = make_twice_net();
  DataParallel parallel(module, 3);
  const torch::Tensor x = rows_of(5);
  (alone->forward(x).square().mean() + alone->forward(2 * x).sum()).backward();
  (parallel.forward(x).square().mean() + parallel.forward(2 * x).sum()).backward();
  expect_same_gradients(*module, *alone);

  const torch::Tensor twice = parallel.forward(x).sum();
  twice.backward({}, /*retain_graph=*/true);
  twice.backward();
  EXPECT_THROW(twice.backward(), c10::Error);  // as for every graph

  const torch::Tensor stale = parallel.forward(x).sum();
  {
    const torch::NoGradGuard no_grad;
    module->last->weight.add_(1);
  }
  parallel.forward(x);
  EXPECT_THROW(stale.backward(), c10::Error);
}

TEST(DataParallel, RunningStatisticsAreThoseOfTheFirstRows) {
  const auto build = [] {
    torch::manual_seed(5);
    torch::nn::Sequential s(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
    s->to(torch::kFloat64);
    return s;
  };
  torch::nn::Sequential alone = build(), module = build();
  DataParallel parallel(module, 2);
  const torch::Tensor x = rows_of(9);
  const torch::Tensor wanted =
      torch::cat({build()->forward(x.narrow(0, 0, 5)), build()->forward(x.narrow(0, 5, 4))});
  alone->forward(x.narrow(0, 0, 5));
  expect_near(parallel.forward(x), wanted, "each part for itself");
  for (const auto& b : alone->named_buffers()) {
    expect_near(module->named_buffers()[b.key()], b.value(), b.key());
  }
  alone->eval();
  module->eval();
  const torch::NoGradGuard no_grad;
  const torch::Tensor got = parallel.forward(x);
  EXPECT_FALSE(got.requires_grad());
  expect_near(got, alone->forward(x), "evaluation");
}

/// Not to be cloned.
struct PlainNet : torch::nn::Module {
  explicit PlainNet(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(6, width))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (fails) throw std::out_of_range("not today");
    if (scalar) return linear(x).sum();
    return linear(x);
  }
  torch::nn::Linear linear;
  bool fails = false, scalar = false;
};

DataParallel::Replica replica_of(const std::shared_ptr<PlainNet>& net) {
  return {net, [net](const torch::Tensor& x) { return net->forward(x); }};
}

TEST(DataParallel, ReplicasThatTheUserBuilt) {
  const auto first = std::make_shared<PlainNet>(3), second = std::make_shared<PlainNet>(3);
  DataParallel parallel({replica_of(first), replica_of(second)});
  const torch::Tensor x = rows_of(4);
  expect_near(parallel.forward(x), first->forward(x), "values of the first");

  second->fails = true;
  EXPECT_THROW(parallel.forward(x), std::out_of_range);
  second->fails = false;
  first->scalar = second->scalar = true;
  EXPECT_THROW(parallel.forward(x), Error);
  first->scalar = second->scalar = false;
  expect_near(parallel.forward(x), first->forward(x), "usable again");

  EXPECT_THROW(DataParallel({replica_of(first), replica_of(std::make_shared<PlainNet>(2))}), Error);
  EXPECT_THROW(DataParallel(std::vector<DataParallel::Replica>{}), Error);
  EXPECT_THROW(DataParallel(first, 2), c10::Error);
  const torch::Tensor loss = parallel.forward(x).sum();
  EXPECT_THROW(torch::autograd::grad({loss}, first->parameters(), {}, true, /*create_graph=*/true),
               Error);
}

TEST(DataParallel, WorksInsideDistributedDataParallel) {
  TwiceNet alone = make_twice_net();
  const torch::Tensor x = rows_of(8);
  for (int pass = 0; pass < 2; ++pass) alone->forward(x).square().mean().backward();
  std::vector<TwiceNet> nets = {make_twice_net(), make_twice_net()};
  run_replicas(2, [&](comm::Communicator& world) {
    const TwiceNet& net = nets[static_cast<std::size_t>(world.rank())];
    DistributedDataParallel ddp(world, net, {.overlap = Overlap::buckets(1)});
    DataParallel parallel(net, 2);
    const torch::Tensor mine = x.narrow(0, 4 * world.rank(), 4);
    {
      const auto local = ddp.no_sync();
      parallel.forward(mine).square().mean().backward();
    }
    parallel.forward(mine).square().mean().backward();
    expect_same_gradients(*net, *alone);
  });
}

TEST(ReplicaThreads, ComputeSideBySideWithAShareOfTheThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  {
    ReplicaThreads threads(2);
    EXPECT_EQ(at::get_num_threads(), 4);
    std::atomic<int> arrived{0};
    threads.run(2, [&](int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();  // ends only if both are here
      torch::ones({1 << 20}).add_(1);                 // asks for threads, as every operation does
      EXPECT_EQ(at::get_num_threads(), 2);
    });
    const torch::NoGradGuard no_grad;
    threads.run(1, [](int i) {
      EXPECT_EQ(i, 0);
      EXPECT_FALSE(torch::GradMode::is_enabled());
    });
    EXPECT_THROW(threads.run(2, [](int i) { throw std::out_of_range(std::to_string(i)); }),
                 std::out_of_range);
  }
  EXPECT_EQ(at::get_num_threads(), 4);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace stormo::train
