// Modules that change after they were wrapped: gradients are still averaged, in the first pass
// after the change too, or every rank gets an error.
#include <ctime>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/world/run_replicas.h>
#include <stormo/train/wrap/data_parallel.h>
#include <stormo/train/wrap/distributed_data_parallel.h>
#include <stormo/train/wrap/sync_batch_norm.h>

#include "tests/unit/train/sharded_problem.h"
#include "toy.h"

namespace stormo::train {
namespace {

using test::ToyModule;
using testing::HasSubstr;
using Module = std::shared_ptr<ToyModule>;

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 3;  // of a rank

void set_trainable(torch::nn::Module& module, bool on) {
  for (torch::Tensor& p : module.parameters()) p.set_requires_grad(on);
}

void load_values(const Module& module) {
  const torch::NoGradGuard no_grad;
  const Module other = std::make_shared<ToyModule>();
  for (torch::Tensor& p : other->parameters()) p.copy_(test::toy_numbers(p.sizes()));
  other->to(module->first->weight.scalar_type());
  std::stringstream file;
  torch::save(other, file);
  torch::load(const_cast<Module&>(module), file);
}

void replace_last(const Module& module) {
  const torch::NoGradGuard no_grad;
  module->last = module->replace_module("last", torch::nn::Linear(64, 3));
  module->last->to(torch::kFloat64);
  for (torch::Tensor& p : module->last->parameters()) p.copy_(test::toy_numbers(p.sizes()));
}

struct Change {
  std::string name;
  std::function<void(const Module&)> before, change;  // wrapping is between them
};

std::vector<Change> changes() {
  const auto nothing = [](const Module&) {};
  const auto freeze_first = [](const Module& m) { set_trainable(*m->first, false); };
  const auto thaw = [](const Module& m) { set_trainable(*m, true); };
  const auto toggle = [](const Module& m) { set_trainable(*m, false), set_trainable(*m, true); };
  return {{"nothing", nothing, nothing},
          {"load", nothing, load_values},
          {"load what is frozen", freeze_first, [=](const Module& m) { load_values(m), thaw(m); }},
          {"float32", nothing, [](const Module& m) { m->to(torch::kFloat32); }},
          {"there and back", nothing,
           [](const Module& m) { m->to(torch::kFloat32), m->to(torch::kFloat64); }},
          {"one layer in float32 and back", nothing,
           [](const Module& m) { m->last->to(torch::kFloat32), m->last->to(torch::kFloat64); }},
          {"thaw a layer", freeze_first, thaw},
          {"thaw all", [](const Module& m) { set_trainable(*m, false); }, thaw},
          {"freeze a layer", nothing, freeze_first},
          {"freeze and thaw", nothing, toggle},
          {"set_data", nothing,
           [](const Module& m) {
             for (torch::Tensor& p : m->parameters()) p.set_data(test::toy_numbers(p.sizes()));
           }},
          {"set_data of another type and back", nothing,
           [](const Module& m) {
             for (torch::Tensor& p : m->parameters()) p.set_data(p.to(torch::kFloat32));
             for (torch::Tensor& p : m->parameters()) p.set_data(p.to(torch::kFloat64));
           }},
          {"gradients to none", nothing, [](const Module& m) { m->zero_grad(true); }},
          {"gradients to zero", nothing, [](const Module& m) { m->zero_grad(false); }},
          {"replace a layer", nothing, replace_last},
          {"replace and convert all", nothing, [](const Module& m) {
             replace_last(m);
             m->to(torch::kFloat32);
           }}};
}

torch::Tensor batch_of_all() { return test::toy_numbers({kRanks * kRows, 20}); }

torch::Tensor loss_of(ToyModule& module, const torch::Tensor& x) {
  return module.forward(x.to(module.first->weight.scalar_type())).square().mean();
}

/// The gradients are those of the batch of all ranks, computed by `alone`.
void expect_averaged(ToyModule& module, ToyModule& alone, const std::string& what) {
  alone.zero_grad();
  loss_of(alone, batch_of_all()).backward();
  const auto wanted = alone.named_parameters();
  for (const auto& p : module.named_parameters()) {
    const torch::Tensor& expected = wanted[p.key()].grad();
    if (!expected.defined()) continue;
    ASSERT_TRUE(p.value().grad().defined()) << what << ": " << p.key();
    const double tolerance = expected.scalar_type() == torch::kFloat32 ? 1e-4 : 1e-10;
    EXPECT_TRUE(torch::allclose(p.value().grad(), expected, tolerance, tolerance * 1e-2))
        << what << ": " << p.key();
  }
}

/// The module of a rank, or one alone.
Module prepared(const Change& c) {
  Module module = test::make_toy_module(3);
  c.before(module);
  return module;
}

/// Wraps a module on each rank, changes it, and checks the gradients of the following passes.
void expect_averages_after(const Change& c, const ReductionOptions& how, test::Group group) {
  std::vector<Module> modules, alone;
  for (int r = 0; r < kRanks; ++r) modules.push_back(prepared(c)), alone.push_back(prepared(c));
  run_replicas(group, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Module& mine = modules[rank];
    DistributedDataParallel ddp(world, mine, how);
    const torch::Tensor x = batch_of_all().narrow(0, world.rank() * kRows, kRows);
    for (int pass = 0; pass < 5; ++pass) {
      if (pass == 1) c.change(mine), c.change(alone[rank]);
      mine->zero_grad(/*set_to_none=*/pass != 3);
      const torch::Tensor loss = loss_of(*mine, x);
      if (loss.requires_grad()) {
        loss.backward();
        expect_averaged(*mine, *alone[rank], c.name + ", pass " + std::to_string(pass));
      } else {
        ddp.reduce_gradients();
      }
    }
  });
}

TEST(WrappedChanges, GradientsAreAveragedFromTheFirstPassOn) {
  for (const Change& c : changes()) {
    expect_averages_after(c, {.overlap = Overlap::at_the_end()}, comm::make_hosts({2}));
    expect_averages_after(c, {.overlap = Overlap::buckets(1)}, comm::make_hosts({2}));
    expect_averages_after(c, {.overlap = Overlap::buckets(1 << 20)}, comm::make_hosts({1, 1}));
    expect_averages_after(c, {}, comm::make_hosts({2}));
  }
}

/// What each rank's `body` throws, "" if nothing. The group has failed for ranks that wait.
std::vector<std::string> errors(const std::function<void(comm::Communicator&, const Module&)>& body,
                                const std::function<void(const Module&)>& before = {}) {
  std::vector<Module> modules;
  for (int r = 0; r < kRanks; ++r) {
    modules.push_back(test::make_toy_module(3));
    if (before) before(modules.back());
  }
  std::vector<std::string> out(kRanks);
  test::Group group = comm::make_hosts({kRanks});
  test::on_ranks(group, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      body(world, modules[rank]);
    } catch (const std::exception& e) {
      out[rank] = e.what();
    }
    (void)world.finalize(Deadline::after(std::chrono::seconds(20)));
  });
  return out;
}

void pass(ToyModule& module) { loss_of(module, batch_of_all().narrow(0, 0, kRows)).backward(); }

TEST(WrappedChanges, RanksThatThawDifferentLayersAllGetAnError) {
  const auto said = errors(
      [](comm::Communicator& world, const Module& module) {
        DistributedDataParallel ddp(world, module);
        pass(*module);
        set_trainable(world.rank() == 0 ? *module->first : *module->last, true);
        pass(*module);
      },
      [](const Module& m) { set_trainable(*m->first, false), set_trainable(*m->last, false); });
  for (const std::string& s : said) {
    EXPECT_THAT(s, HasSubstr("have changed here since it was wrapped"));
    EXPECT_THAT(s, HasSubstr("model first.weight"));
  }
}

TEST(WrappedChanges, AChangeOfOneRankAloneIsAnErrorOnAll) {
  for (const Overlap& overlap : {Overlap::at_the_end(), Overlap::buckets(1)}) {
    const auto said = errors(
        [&](comm::Communicator& world, const Module& module) {
          DistributedDataParallel ddp(world, module, {.overlap = overlap});
          pass(*module);
          if (world.rank() == 1) set_trainable(*module, true);
          pass(*module);
        },
        [](const Module& m) { set_trainable(*m->first, false); });
    EXPECT_THAT(said[0], HasSubstr("over parameters that have changed on all ranks alike"));
    EXPECT_THAT(said[1], HasSubstr("have changed here since it was wrapped"));
  }
}

TEST(WrappedChanges, OtherValuesOnARankAreAnError) {
  const auto said = errors([](comm::Communicator& world, const Module& module) {
    DistributedDataParallel ddp(world, module);
    module->to(torch::kFloat32);
    if (world.rank() == 1) module->last->bias.set_data(torch::ones({3}));
    pass(*module);
  });
  for (const std::string& s : said) EXPECT_THAT(s, HasSubstr("first in 'last.bias'"));
}

TEST(WrappedChanges, ARankWithoutSamplesTakesPartInTheChange) {
  const auto said = errors([](comm::Communicator& world, const Module& module) {
    DistributedDataParallel ddp(world, module);
    module->to(torch::kFloat32);
    ddp.set_weight(world.rank());
    if (world.rank() == 0) {
      ddp.reduce_gradients();
    } else {
      pass(*module);
    }
    EXPECT_EQ(module->first->weight.grad().scalar_type(), torch::kFloat32);
    EXPECT_GT(module->first->weight.grad().abs().sum().item<double>(), 0);
  });
  EXPECT_THAT(said, testing::Each(""));
}

// Local passes after a change, then one that is averaged with them.
TEST(WrappedChanges, LocalPassesAfterAChangeCount) {
  const auto said = errors([](comm::Communicator& world, const Module& module) {
    DistributedDataParallel ddp(world, module);
    module->to(torch::kFloat32);
    module->first->bias.set_data(torch::full({128}, 1.0f));
    const auto local_pass = [&] { (module->first->bias.sum() * (world.rank() + 1)).backward(); };
    {
      const auto local = ddp.no_sync();
      local_pass();
    }
    local_pass();
    EXPECT_FLOAT_EQ(module->first->bias.grad()[0].item<float>(), 3);  // twice the mean of 1 and 2
  });
  EXPECT_THAT(said, testing::Each(""));
}

// Two modules take turns, as a generator and its judge; one is frozen while the other learns.
TEST(WrappedChanges, APassOfAnotherModuleAsksNobody) {
  const auto said = errors([](comm::Communicator& world, const Module& module) {
    const Module other = std::make_shared<ToyModule>();
    DistributedDataParallel ddp(world, module), ddp_of_other(world, other);
    other->to(torch::kFloat32);
    for (int i = 0; i < 3; ++i) {
      set_trainable(*other, false);
      if (world.rank() == 0) {
        pass(*module);
      } else {
        ddp.reduce_gradients();
      }
      set_trainable(*other, true);
      pass(*other);
    }
  });
  EXPECT_THAT(said, testing::Each(""));
}

TEST(WrappedChanges, TwoWrappersOfAParameterAreRefusedWhereTheyAverage) {
  const auto said = errors([](comm::Communicator& world, const Module& module) {
    auto ddp = std::make_unique<DistributedDataParallel>(world, module);
    ddp = std::make_unique<DistributedDataParallel>(world, module);  // the old one goes
    pass(*module);
    const DistributedDataParallel of_a_part(world, module->last.ptr());
    pass(*module);
  });
  for (const std::string& s : said) EXPECT_THAT(s, HasSubstr("is wrapped twice"));
}

TEST(WrappedChanges, AParameterWithTwoNamesIsAveragedOnce) {
  const auto said = errors([](comm::Communicator& world, const Module&) {
    auto net = std::make_shared<torch::nn::Module>("tied");
    const torch::Tensor w = net->register_parameter("a", torch::ones({128, 128}));
    net->register_parameter("b", w);
    for (const Overlap& overlap : {Overlap::at_the_end(), Overlap::buckets(1)}) {
      DistributedDataParallel ddp(world, net, {.overlap = overlap});
      for (int i = 0; i < 3; ++i) {
        net->zero_grad();
        (w.sum() * (2.0 * world.rank() + 1)).backward();
        EXPECT_TRUE(w.grad().eq(2).all().item<bool>());
      }
    }
  });
  EXPECT_THAT(said, testing::Each(""));
}

TEST(WrappedChanges, AThawedTableIsReducedByRows) {
  const auto said = errors([](comm::Communicator& world, const Module&) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(1000, 8).sparse(true));
    set_trainable(*table, false);
    DistributedDataParallel ddp(world, table);
    set_trainable(*table, true);
    table(torch::tensor({std::int64_t{7}, std::int64_t{100} + world.rank()})).sum().backward();
    torch::Tensor wanted = torch::zeros({1000, 8});
    wanted[7] += 1;
    wanted[100] += 0.5;
    wanted[101] += 0.5;
    EXPECT_TRUE(table->weight.grad().is_sparse());
    EXPECT_TRUE(torch::equal(table->weight.grad().to_dense(), wanted));
  });
  EXPECT_THAT(said, testing::Each(""));
}

TEST(WrappedChanges, AddedLayersAreAveraged) {
  const auto said = errors([](comm::Communicator& world, const Module&) {
    torch::nn::Sequential net(torch::nn::Linear(4, 5));
    DistributedDataParallel ddp(world, net);
    const auto bias = torch::ones({2});
    for (int layers = 0; layers < 2; ++layers) {
      torch::nn::Linear added(5, layers == 0 ? 5 : 2);
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : added->parameters()) p.fill_(0.1);
      net->push_back(added);
    }
    (net->forward(torch::ones({1, 4})).sum() * (world.rank() + 1)).backward();
    EXPECT_TRUE(torch::allclose(net->parameters().back().grad(), bias * 1.5));
  });
  EXPECT_THAT(said, testing::Each(""));
}

/// Of this thread, for a forward and backward of `net`; the best of several.
double cpu_seconds(torch::nn::Sequential& net) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    net->zero_grad();
    const double start = now();
    net->forward(torch::ones({4, 8})).sum().backward();
    best = std::min(best, now() - start);
  }
  return best;
}

// 1000 small parameters, where it weighs most; the hooks and the end of the pass are in it too.
TEST(WrappedChanges, NoticingThatNothingHasChangedIsCheap) {
  torch::nn::Sequential net;
  for (int i = 0; i < 500; ++i) net->push_back(torch::nn::Linear(8, 8));
  const double alone = cpu_seconds(net);
  double wrapped = 0;
  test::on_ranks(1, [&](comm::Communicator& world) {
    const DistributedDataParallel ddp(world, net);
    wrapped = cpu_seconds(net);
  });
  std::printf("1000 parameters: %.0f us, wrapped %.0f us\n", alone * 1e6, wrapped * 1e6);
  EXPECT_LT(wrapped, 1.5 * alone);
}

TEST(WrappedChanges, ConvertingALayerThatIsWrappedIsRefused) {
  test::on_ranks(1, [](comm::Communicator& world) {
    torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5));
    const auto norms = std::make_shared<SyncBatchNormGroup>(world);
    {
      const DistributedDataParallel ddp(world, net);
      EXPECT_THROW(convert_sync_batch_norm(net, norms), Error);
    }
    EXPECT_NO_THROW(convert_sync_batch_norm(net, norms));
  });
}

TEST(WrappedChanges, ReplicasOfDataParallelFollowTypeAndRefuseOtherLayers) {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(20, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  DataParallel parallel(net, 2);
  const torch::Tensor x = test::toy_numbers({6, 20});
  net->to(torch::kFloat64);
  EXPECT_TRUE(torch::allclose(parallel.forward(x), net->forward(x)));
  net->push_back(torch::nn::Linear(3, 2));
  EXPECT_THROW(parallel.forward(x), Error);
}

TEST(WrappedChanges, ShardedParametersThatAreReplacedOrThawedAreRefused) {
  const auto message_after = [](const std::function<void(torch::nn::Sequential&)>& before,
                                const std::function<void(torch::nn::Sequential&)>& change) {
    std::string said;
    test::on_ranks(1, [&](comm::Communicator& world) {
      torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Linear(5, 2));
      before(net);
      FullyShardedDataParallel fsdp(world, net);
      fsdp.forward(torch::ones({1, 4})).sum().backward();
      change(net);
      try {
        fsdp.forward(torch::ones({1, 4}));
      } catch (const Error& e) {
        said = e.what();
      }
    });
    return said;
  };
  const auto nothing = [](torch::nn::Sequential&) {};
  const auto load = [](torch::nn::Sequential& net) {
    std::stringstream file;
    torch::save(torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::Linear(5, 2)), file);
    torch::load(net, file);
  };
  EXPECT_EQ(message_after(nothing, nothing), "");
  EXPECT_THAT(message_after(nothing, load), HasSubstr("'0.weight' got other memory"));
  EXPECT_THAT(message_after(nothing, [](auto& net) { net->to(torch::kFloat64); }),
              HasSubstr("'0.weight' got other memory"));
  EXPECT_THAT(message_after([](auto& net) { set_trainable(*net->ptr(0), false); },
                            [](auto& net) { set_trainable(*net, true); }),
              HasSubstr("'0.weight' was frozen"));
  EXPECT_THAT(
      message_after(nothing,
                    [](auto& net) { net->ptr(1)->register_parameter("more", torch::zeros({2})); }),
      HasSubstr("'more' came into the module"));
}

TEST(WrappedChanges, AnOptimizerWhoseStateIsOfAnotherTypeRefuses) {
  torch::nn::Linear net(3, 2);
  FusedOptimizer adam({.kind = OptimizerOptions::Kind::kAdamW}, trainable_parameters(*net));
  for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kFloat32, torch::kBFloat16}) {
    net->to(type);
    net->zero_grad();
    net->forward(torch::ones({1, 3}, type)).sum().backward();
    const Status status = adam.step(0.1);
    EXPECT_EQ(status.ok(), type == torch::kFloat32) << status.to_string();
  }
}

}  // namespace
}  // namespace stormo::train
