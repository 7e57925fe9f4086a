// Activation checkpointing: the same numbers from less memory.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <stormo/train/autograd/activation_checkpoint.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using test::Values;

/// Counts the live bytes of this thread's tensors while it is installed.
class LiveBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

std::int64_t peak_bytes(const std::function<void()>& work) {
  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  work();
  return bytes->peak();
}

class Layer final : public model::Segment {
 public:
  Layer(std::int64_t width, double dropout)
      : Segment("Layer"),
        linear_(register_module("linear", torch::nn::Linear(width, width))),
        dropout_(register_module("dropout", torch::nn::Dropout(dropout))) {}
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(linear_(x));
    return dropout_->options.p() > 0 ? dropout_(x) : x;
  }

 private:
  torch::nn::Linear linear_;
  torch::nn::Dropout dropout_;
};

struct Layers final : model::Chain {
  Layers(int n, std::int64_t width, double dropout) : Chain("Layers") {
    for (int i = 0; i < n; ++i) {
      append("layer" + std::to_string(i), std::make_shared<Layer>(width, dropout));
    }
  }
};

struct Pass {
  double loss = 0;
  Values gradients;
  torch::Tensor next_random;  // whether the generator stands where it would
};

using Forward = std::function<torch::Tensor(const std::shared_ptr<model::Chain>&, torch::Tensor)>;

Pass run(const std::shared_ptr<model::Chain>& chain, const torch::Tensor& input,
         const torch::Tensor& target, const Forward& forward, bool autocast = false) {
  chain->zero_grad();
  torch::manual_seed(5);
  Pass result;
  const torch::Tensor output = [&] {
    if (!autocast) return forward(chain, input);
    const Autocast in_16_bits(at::kCPU, torch::kBFloat16);
    return forward(chain, input);
  }();
  const torch::Tensor loss = model::cross_entropy(output.to(torch::kFloat32), target);
  loss.backward();
  result.loss = loss.item<double>();
  for (const auto& p : chain->named_parameters()) {
    EXPECT_TRUE(p.value().grad().defined()) << p.key();
    result.gradients.emplace(p.key(), p.value().grad().clone());
  }
  result.next_random = torch::rand({4});
  return result;
}

Forward plain() {
  return [](const auto& chain, torch::Tensor x) { return chain->forward(std::move(x)); };
}
Forward checkpointed(std::size_t k) {
  return [k](const auto& chain, torch::Tensor x) {
    return checkpointed_forward(chain, std::move(x), k);
  };
}

void expect_equal(const Pass& a, const Pass& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  EXPECT_TRUE(a.next_random.equal(b.next_random)) << what;
  for (const auto& [name, gradient] : a.gradients) {
    EXPECT_TRUE(gradient.equal(b.gradients.at(name))) << what << ": " << name;
  }
}

TEST(ActivationCheckpoint, ChangesNoBit) {
  for (const double dropout : {0.0, 0.3}) {
    for (const bool autocast : {false, true}) {
      torch::manual_seed(1);
      const auto chain = std::make_shared<Layers>(7, 16, dropout);
      const torch::Tensor x = torch::randn({8, 16}), target = torch::randint(16, {8});
      const Pass expected = run(chain, x, target, plain(), autocast);
      for (const std::size_t k : {0, 1, 2, 7, 9}) {
        expect_equal(run(chain, x, target, checkpointed(k), autocast), expected,
                     "dropout " + std::to_string(dropout) + ", autocast " +
                         std::to_string(autocast) + ", groups of " + std::to_string(k));
      }
    }
  }
}

TEST(ActivationCheckpoint, ChangesNoBitOfATiedGpt) {
  const test::Problem problem = test::gpt_problem();
  const auto chain = problem.model(2);
  const test::Batch batch = problem.batches(1, 4).front();
  const auto flat = [](const Forward& forward) {
    return [forward](const auto& c, torch::Tensor x) {
      return forward(c, std::move(x)).flatten(0, 1);
    };
  };
  const torch::Tensor target = batch.target.flatten();
  const Pass expected = run(chain, batch.x, target, flat(plain()));
  for (const std::size_t k : {1, 2}) {
    expect_equal(run(chain, batch.x, target, flat(checkpointed(k))), expected, "gpt");
  }
}

TEST(ActivationCheckpoint, RecordsNothingWhereNothingIsRecorded) {
  const torch::Tensor w = torch::randn({3, 3}, torch::requires_grad());
  const auto f = [w](const torch::Tensor& x) { return torch::mm(x, w); };
  const torch::Tensor x = torch::randn({2, 3});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(f, x).requires_grad());
  }
  // A leaf and a function of it as input; and one whose gradient is not wanted.
  const torch::Tensor leaf = torch::randn({2, 3}, torch::requires_grad());
  (checkpoint(f, leaf * 2).sum() + checkpoint(f, leaf).sum() + checkpoint(f, x).sum()).backward();
  EXPECT_TRUE(leaf.grad().allclose(3 * torch::ones({2, 3}).mm(w.t().detach())));
  EXPECT_FALSE(x.grad().defined());
}

TEST(ActivationCheckpoint, LeavesAutocastsRoundedParametersToOthers) {
  const torch::Tensor w = torch::randn({3, 3}, torch::requires_grad());
  const auto f = [w](const torch::Tensor& x) { return torch::mm(x, w); };
  const torch::Tensor x = torch::ones({2, 3});
  torch::Tensor loss;
  {
    const Autocast autocast(at::kCPU, torch::kBFloat16);
    loss = checkpoint(f, x).sum() + f(x).sum();
  }
  loss.backward();
  EXPECT_TRUE(w.grad().equal(torch::full({3, 3}, 4.0)));
}

TEST(ActivationCheckpoint, RoundsParametersAnewInEachStep) {
  torch::manual_seed(1);
  const auto chain = std::make_shared<Layers>(4, 16, 0);
  const torch::Tensor x = torch::randn({8, 16}), target = torch::randint(16, {8});
  run(chain, x, target, checkpointed(1), true);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& p : chain->parameters()) p.mul_(1.5);
  }
  const Pass got = run(chain, x, target, checkpointed(1), true);
  expect_equal(got, run(chain, x, target, plain(), true), "second step");
}

TEST(ActivationCheckpoint, RefusesGradientsOfGradients) {
  const torch::Tensor w = torch::randn({3, 3}, torch::requires_grad());
  const torch::Tensor input = torch::randn({2, 3}, torch::requires_grad());
  const auto loss = [&] {
    return checkpoint([w](const torch::Tensor& x) { return torch::mm(x, w); }, input).sum();
  };
  EXPECT_THROW(torch::autograd::grad({loss()}, {input}), Error);
  EXPECT_THROW(torch::autograd::backward({loss()}, {}, true, true), Error);
}

TEST(ActivationCheckpoint, MeetsTheFormulaOfMemory) {
  constexpr int kLayers = 256;
  constexpr std::int64_t kWidth = 16, kRows = 2048, kActivation = kWidth * kRows * 4;
  const auto chain = std::make_shared<Layers>(kLayers, kWidth, 0);
  const torch::Tensor x = torch::randn({kRows, kWidth});
  for (const auto& p : chain->parameters()) p.mutable_grad() = torch::zeros_like(p);
  const auto peak = [&](const Forward& forward) {
    return static_cast<double>(peak_bytes([&] { forward(chain, x).sum().backward(); })) /
           static_cast<double>(kActivation);
  };
  const double all = peak(plain());
  EXPECT_GE(all, kLayers);
  RecordProperty("plain", std::to_string(all));
  for (const std::size_t k : {0, 8, 16, 32}) {
    const double group = k == 0 ? std::sqrt(kLayers) : static_cast<double>(k);
    const double formula = kLayers / group + group;
    const double got = peak(checkpointed(k));
    RecordProperty("groups_of_" + std::to_string(k), std::to_string(got));
    EXPECT_LE(got, 1.1 * formula) << "groups of " << k;
    EXPECT_GE(got, 0.9 * formula) << "groups of " << k;
  }
}

TEST(ActivationCheckpoint, WorksUnderDistributedDataParallel) {
  // The widest layers are reduced where autograd left them, the others packed.
  torch::manual_seed(4);
  const auto build = [] {
    torch::manual_seed(1);
    return std::make_shared<Layers>(5, 144, 0);
  };
  const auto alone = build();
  std::vector<std::shared_ptr<Layers>> models = {build(), build()};
  const torch::Tensor x = torch::randn({8, 144}), target = torch::randint(144, {8});
  const Pass expected = run(alone, x, target, plain());
  for (const Overlap& overlap : {Overlap::at_the_end(), Overlap::buckets(1 << 16)}) {
    test::on_ranks(2, [&](comm::Communicator& world) {
      const auto& model = models[static_cast<std::size_t>(world.rank())];
      model->zero_grad();
      DistributedDataParallel ddp(world, model, {.overlap = overlap});
      const torch::Tensor output = checkpointed_forward(model, x.narrow(0, 4 * world.rank(), 4), 2);
      model::cross_entropy(output, target.narrow(0, 4 * world.rank(), 4)).backward();
      for (const auto& p : model->named_parameters()) {
        EXPECT_TRUE(p.value().grad().allclose(expected.gradients.at(p.key()), 1e-4, 1e-6))
            << p.key();
      }
    });
  }
}

}  // namespace
}  // namespace stormo::train
