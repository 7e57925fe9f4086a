#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

#include <torch/torch.h>

#include <stormo/stormo.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/agreement/replica_check.h>
#include <stormo/train/state/checkpoint.h>

#include "scenarios.h"
#include "toy.h"

namespace stormo::test {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not as expected: " + what);
}

void expect_close(const torch::Tensor& got, const torch::Tensor& wanted, const std::string& what) {
  expect(got.defined() && torch::allclose(got, wanted, 1e-12, 1e-14), what);
}

Status check_replicas(World& world, const torch::nn::Module& module) {
  return train::check_replicas(world, train::visit_all(train::named_state(module))).status();
}

// The batch of all ranks; each one takes rows [rank * rows, (rank + 1) * rows).
torch::Tensor global_batch(int size, std::int64_t rows, std::int64_t features) {
  torch::manual_seed(42);
  return torch::randn({size * rows, features}, torch::kFloat64);
}

// A module inside a module, built with other weights on every rank.
void nested_module(World& world) {
  auto module = make_toy_module(3 + static_cast<std::uint64_t>(world.rank()));
  auto reference = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  const torch::Tensor all = global_batch(world.size(), 4, 20);
  for (int step = 0; step < 3; ++step) {
    module->zero_grad();
    reference->zero_grad();
    module->forward(all.narrow(0, world.rank() * 4, 4)).square().mean().backward();
    reference->forward(all).square().mean().backward();
    for (const auto& p : module->named_parameters()) {
      expect_close(p.value().grad(), reference->named_parameters()[p.key()].grad(), p.key());
      const torch::NoGradGuard no_grad;
      p.value().sub_(p.value().grad(), 0.1);
      auto& twin = reference->named_parameters()[p.key()];
      twin.sub_(twin.grad(), 0.1);
    }
    throw_if_error(check_replicas(world, *module));
  }
  expect(tensor::in_arena(module->middle->weight.grad()),
         "a large gradient lies where peers can read it");
}

// Two parameters whose gradients autograd gives one block: reduced in place, each would be reduced
// twice.
struct Aliasing : torch::nn::Module {
  Aliasing()
      : a(register_parameter("a", torch::zeros({128, 128}, torch::kFloat64))),
        b(register_parameter("b", torch::zeros({128 * 128}, torch::kFloat64))),
        c(register_parameter("c", torch::zeros({64, 128}, torch::kFloat64))),
        d(register_parameter("d", torch::zeros({64, 128}, torch::kFloat64))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor sum = a.view(-1) + b.view(-1);
    return (sum * x).sum() + (torch::cat({c, d}).view(-1) * x).sum();
  }
  torch::Tensor a, b, c, d;
};

void aliased_gradients(World& world) {
  auto module = std::make_shared<Aliasing>();
  DistributedDataParallel ddp(world, module);
  const torch::Tensor x =
      torch::arange(128 * 128, torch::kFloat64) * static_cast<double>(world.rank() + 1);
  const double mean_factor = (world.size() + 1) / 2.0;
  const torch::Tensor wanted = torch::arange(128 * 128, torch::kFloat64) * mean_factor;
  for (int step = 0; step < 2; ++step) {
    module->zero_grad(/*set_to_none=*/step == 0);
    module->forward(x).backward();
    expect_close(module->a.grad().view(-1), wanted, "a");
    expect_close(module->b.grad(), wanted, "b");
    expect_close(torch::cat({module->c.grad(), module->d.grad()}).view(-1), wanted, "cat");
  }
}

// Parameters that only some ranks use, or none.
void unused_parameters(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  const torch::Tensor x = torch::ones({2, 20}, torch::kFloat64);
  torch::Tensor hidden = module->first(x).sum();
  if (world.rank() == 0) hidden = hidden + module->middle->weight.sum();
  hidden.backward();
  expect_close(module->middle->weight.grad(),
               torch::full({64, 128}, 1.0 / world.size(), torch::kFloat64), "used by rank 0 alone");
  expect(!module->last->weight.grad().defined() && !module->middle->bias.grad().defined(),
         "what no rank uses has no gradient");
  expect_close(module->first->bias.grad(), torch::full({128}, 2.0, torch::kFloat64), "used by all");
}

// Uneven batches, one of them empty.
void weights(World& world) {
  auto module = make_toy_module(3);
  auto reference = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  // Rank r has r samples.
  const std::int64_t total = world.size() * (world.size() - 1) / 2;
  const torch::Tensor all = global_batch(1, total, 20);
  const std::int64_t mine = world.rank(), first = mine * (mine - 1) / 2;
  ddp.set_weight(static_cast<double>(mine));
  if (mine == 0) {
    ddp.reduce_gradients();
  } else {
    module->forward(all.narrow(0, first, mine)).square().mean().backward();
  }
  reference->forward(all).square().mean().backward();
  for (const auto& p : module->named_parameters()) {
    expect_close(p.value().grad(), reference->named_parameters()[p.key()].grad(), p.key());
  }
  for (const double bad : {-1.0, std::nan("")}) {
    bool refused = false;
    try {
      ddp.set_weight(bad);
    } catch (const Error& e) {
      refused = e.status().code() == Code::kInvalidArgument;
    }
    expect(refused, "a bad weight is refused");
  }
}

// Accumulation over two passes, and autograd::grad(), which must not reduce anything.
void no_sync(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  const auto pass = [&] {
    const auto x = torch::full({1, 20}, static_cast<double>(world.rank() + 1), torch::kFloat64);
    return module->first(x).sum();
  };
  {
    const auto local = ddp.no_sync();
    pass().backward();
    expect_close(module->first->weight.grad(),
                 torch::full({128, 20}, world.rank() + 1.0, torch::kFloat64), "local gradient");
  }
  if (world.rank() == 0) (void)torch::autograd::grad({pass()}, {module->first->weight});
  pass().backward();
  expect_close(module->first->weight.grad(),
               torch::full({128, 20}, world.size() + 1.0, torch::kFloat64), "sum of two passes");
}

// A pass that ends early must not keep the next one from being reduced.
void backward_that_throws(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  const auto x = torch::full({1, 20}, static_cast<double>(world.rank()), torch::kFloat64);
  torch::Tensor hidden = module->first(x);
  hidden.register_hook(
      [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("hook"); });
  bool thrown = false;
  try {
    (hidden.sum() + module->last->weight.sum()).backward();
  } catch (const std::exception&) {
    thrown = true;
  }
  expect(thrown, "the hook's exception arrives");
  module->zero_grad();
  module->first(x).sum().backward();
  expect_close(module->first->weight.grad(),
               torch::full({128, 20}, (world.size() - 1) / 2.0, torch::kFloat64), "next pass");
}

// Reduced bucket by bucket, while backward goes on.
void buckets(World& world) {
  auto module = make_toy_module(3);
  auto reference = make_toy_module(3);
  DistributedDataParallel ddp(world, module, {.overlap = Overlap::buckets(1)});
  const torch::Tensor all = global_batch(world.size(), 4, 20);
  for (int step = 0; step < 4; ++step) {
    module->zero_grad();
    reference->zero_grad();
    // two forwards, and the module in two losses
    const torch::Tensor mine = all.narrow(0, world.rank() * 4, 4);
    (module->forward(mine).square().mean() + module->forward(mine).mean()).backward();
    (reference->forward(all).square().mean() + reference->forward(all).mean()).backward();
    for (const auto& p : module->named_parameters()) {
      expect_close(p.value().grad(), reference->named_parameters()[p.key()].grad(), p.key());
    }
  }
}

// Recomputes its part of the forward pass inside backward, by a backward pass of its own.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer.get());
    const torch::NoGradGuard no_grad;
    return layer(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode with_grad(true);
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

void reentrant_backward(World& world) {
  for (const Overlap& overlap : {Overlap::at_the_end(), Overlap::buckets(1)}) {
    torch::nn::Linear first(20, 128), last(128, 4);
    first->to(torch::kFloat64);
    last->to(torch::kFloat64);
    torch::nn::Sequential net(first, last);
    DistributedDataParallel ddp(world, net, {.overlap = overlap});
    const torch::Tensor all = global_batch(world.size(), 4, 20);
    const auto gradients = [&](const torch::Tensor& x, bool recompute) {
      net->zero_grad();
      const torch::Tensor input = x.clone().requires_grad_();
      const torch::Tensor hidden = recompute ? Recomputed::apply(input, first) : first(input);
      (recompute ? Recomputed::apply(hidden, last) : last(hidden)).square().mean().backward();
      std::vector<torch::Tensor> out;
      for (const torch::Tensor& p : net->parameters()) out.push_back(p.grad().clone());
      return out;
    };
    for (int step = 0; step < 3; ++step) {
      const auto got = gradients(all.narrow(0, world.rank() * 4, 4), true);
      std::vector<torch::Tensor> wanted;
      {
        const auto local = ddp.no_sync();
        wanted = gradients(all, false);
      }
      for (std::size_t i = 0; i < got.size(); ++i) expect_close(got[i], wanted[i], "recomputed");
    }
  }
}

void sparse_gradients(World& world) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(1000, 8).sparse(true));
  table->to(torch::kFloat64);
  DistributedDataParallel ddp(world, table);
  ddp.set_weight(world.rank() + 1.0);
  const double total = world.size() * (world.size() + 1) / 2.0;
  torch::Tensor wanted = torch::zeros({1000, 8}, torch::kFloat64);
  for (int r = 0; r < world.size(); ++r) {
    wanted[7] += (r + 1) / total;            // a row of all ranks
    wanted[100 + r] += 2 * (r + 1) / total;  // twice one of its own
  }
  const std::int64_t own = 100 + world.rank();
  table(torch::tensor({std::int64_t{7}, own, own})).sum().backward();
  expect(table->weight.grad().is_sparse(), "the gradient stays sparse");
  expect_close(table->weight.grad().to_dense(), wanted, "rows");
}

// Ranks with unequal numbers of batches: everyone's samples count once.
void uneven_inputs(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  const int mine = world.rank() + 1;
  int step = 0;
  for (; ddp.any_rank_has(step < mine); ++step) {
    module->zero_grad();
    const bool has = step < mine;
    ddp.set_weight(has ? 1 : 0);
    if (has) {
      const double value = world.rank() + 1;
      module->first(torch::full({1, 20}, value, torch::kFloat64)).sum().backward();
    } else {
      ddp.reduce_gradients();
    }
    double sum = 0, count = 0;
    for (int r = step; r < world.size(); ++r, ++count) sum += r + 1;
    expect_close(module->first->weight.grad(), torch::full({128, 20}, sum / count, torch::kFloat64),
                 "live ranks");
  }
  expect(step == world.size(), "as many steps as the longest has batches");
}

void frozen_and_shared_parameters(World& world) {
  auto module = make_toy_module(3);
  module->last->bias.requires_grad_(false);
  DistributedDataParallel ddp(world, module, {.overlap = Overlap::buckets(1)});
  for (int step = 0; step < 2; ++step) {
    module->zero_grad();
    const auto x = torch::full({2, 20}, world.rank() + 1.0, torch::kFloat64);
    // one weight used twice
    (module->first(x).sum() + 2 * module->first(x).sum()).backward();
    expect_close(module->first->weight.grad(),
                 torch::full({128, 20}, 3.0 * (world.size() + 1), torch::kFloat64), "used twice");
    expect(!module->last->bias.grad().defined(), "frozen");
  }
}

void different_modules(World& world) {
  const bool odd = world.rank() + 1 == world.size();
  const auto refused = [&](const std::shared_ptr<ToyModule>& module, const std::string& named) {
    std::string message;
    try {
      DistributedDataParallel ddp(world, module);
    } catch (const Error& e) {
      message = e.what();
    }
    expect(world.size() == 1 || message.find(named) != std::string::npos,
           "the difference is named, got: " + message);
  };
  auto more = make_toy_module(3), wider = make_toy_module(3);
  if (odd) more->register_buffer("odd_one", torch::zeros({2, 3}));
  refused(more, "model odd_one  Float [2, 3]");
  if (odd) wider->last->bias.set_data(torch::zeros({4}, torch::kFloat64));
  refused(wider, "model last.bias  Double [4] trained");
}

// Whoever forgets the wrapper gets replicas that drift apart, and is told so.
void unwrapped_module(World& world) {
  auto module = make_toy_module(3);
  module->first(torch::full({1, 20}, world.rank() + 1.0, torch::kFloat64)).sum().backward();
  {
    const torch::NoGradGuard no_grad;
    module->first->weight.sub_(module->first->weight.grad(), 0.1);
  }
  const Status status = check_replicas(world, *module);
  expect(world.size() == 1 || status.code() == Code::kMismatch, "replicas that differ are noticed");
  expect(world.size() == 1 || status.message().find("'first.weight'") != std::string::npos,
         "the tensor is named, got: " + status.message());
}

// Rank 0 leaves while the others are in backward: the group fails, and backward() throws.
void failure_in_backward(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module);
  if (world.rank() == 0) throw std::logic_error("rank 0 has had enough");
  try {
    module->first(torch::ones({1, 20}, torch::kFloat64)).sum().backward();
  } catch (const Error& e) {
    std::printf("backward threw: %s\n", e.what());
    std::fflush(stdout);
    throw;
  }
}

void expect_table(const Error& e, const std::string& call_of_rank_1) {
  std::printf("%s\n", e.what());
  std::fflush(stdout);
  const std::string message = e.what();
  expect(e.status().code() == Code::kMismatch, "a mismatch, got: " + message);
  expect(message.find("rank 0: all_reduce") != std::string::npos &&
             message.find("rank 1: " + call_of_rank_1) != std::string::npos,
         "what each rank called, got: " + message);
}

// Rank 1 leaves out a backward pass, so that its next call meets another one of rank 0.
void skipped_backward(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module, {.overlap = Overlap::at_the_end()});
  try {
    for (int step = 0; step < 3; ++step) {
      const bool skip = world.rank() == 1 && step == 1;
      if (!skip) module->forward(torch::ones({1, 20}, torch::kFloat64)).sum().backward();
      throw_if_error(check_replicas(world, *module));
    }
  } catch (const Error& e) {
    expect_table(e, "all_gather");
    throw;
  }
}

// The same in a loop that calls nothing else: rank 1 is at its end while rank 0 still waits for it.
void skipped_last_backward(World& world) {
  auto module = make_toy_module(3);
  DistributedDataParallel ddp(world, module, {.overlap = Overlap::at_the_end()});
  try {
    const int passes = world.rank() == 1 ? 2 : 3;
    for (int step = 0; step < passes; ++step) {
      module->forward(torch::ones({1, 20}, torch::kFloat64)).sum().backward();
    }
  } catch (const Error& e) {
    expect_table(e, "finalize");
    throw;
  }
}

}  // namespace

int ddp_scenario(const std::string& name) {
  static const std::map<std::string, std::function<void(World&)>> scenarios = {
      {"nested_module", nested_module},
      {"aliased_gradients", aliased_gradients},
      {"unused_parameters", unused_parameters},
      {"weights", weights},
      {"no_sync", no_sync},
      {"buckets", buckets},
      {"reentrant_backward", reentrant_backward},
      {"sparse_gradients", sparse_gradients},
      {"uneven_inputs", uneven_inputs},
      {"frozen_and_shared_parameters", frozen_and_shared_parameters},
      {"backward_that_throws", backward_that_throws},
      {"different_modules", different_modules},
      {"unwrapped_module", unwrapped_module},
      {"skipped_backward", skipped_backward},
      {"skipped_last_backward", skipped_last_backward},
      {"failure_in_backward", failure_in_backward},
  };
  World world = init();
  if (name == "all") {  // one start of the processes for everything that succeeds
    for (const auto& [each, run] : scenarios) {
      if (each != "failure_in_backward" && !each.starts_with("skipped")) run(world);
    }
    return 0;
  }
  scenarios.at(name)(world);
  return 0;
}

}  // namespace stormo::test
