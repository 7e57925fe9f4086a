// Data parallel training in bfloat16 with gradient accumulation and clipping, in a loop of your
// own:
//
//   stormo run -n 2 -- build/release/bin/example_mixed_precision [float16]
//
// float16 needs a loss scale; with bfloat16 it does no harm. Ends with 1 unless the loss fell.
#include <cstdio>
#include <string_view>

#include <stormo/stormo.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <torch/torch.h>

namespace {

constexpr int kBatch = 64, kPasses = 2, kSteps = 60;
constexpr double kMaxNorm = 1.0;

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(64, 256))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(256, 10))};
};

torch::Tensor loss_of(Net& net, std::int64_t rows, torch::ScalarType type) {
  const torch::Tensor x = torch::randn({rows, 64});
  const torch::Tensor target = x.narrow(1, 0, 10).argmax(1);
  const torch::Tensor output = [&] {
    const stormo::Autocast autocast(at::kCPU, type);  // forward only
    return net.forward(x);
  }();
  return torch::nn::functional::cross_entropy(output.to(torch::kFloat32), target);
}

}  // namespace

int main(int argc, char** argv) {
  const auto type =
      argc > 1 && std::string_view(argv[1]) == "float16" ? torch::kHalf : torch::kBFloat16;
  stormo::World world = stormo::init();
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));  // other samples on each rank

  const auto net = std::make_shared<Net>();
  stormo::DistributedDataParallel ddp(world, net);
  stormo::train::FusedOptimizer optimizer({.kind = stormo::train::OptimizerOptions::Kind::kAdamW},
                                          stormo::train::trainable_parameters(*net));
  stormo::GradScaler scaler(world);

  const int rows = kBatch / kPasses / world.size();
  double first_loss = 0, loss = 0;
  for (int step = 1; step <= kSteps; ++step) {
    optimizer.zero_grad();
    loss = 0;
    const auto pass = [&] {
      const torch::Tensor part = loss_of(*net, rows, type) / kPasses;
      scaler.scale(part).backward();
      loss += part.item<double>();
    };
    {
      const auto local = ddp.no_sync();
      for (int i = 1; i < kPasses; ++i) pass();
    }
    pass();  // the sum of all passes is averaged over all ranks when its backward() returns

    if (scaler.check(optimizer.parameters()).value()) {  // else all ranks skip the step
      const double norm = optimizer.gradient_norm().value() * scaler.gradient_scale();
      const double clip = stormo::train::clip_coefficient(norm, kMaxNorm).value();
      const stormo::Status done =
          optimizer.step({.lr = 3e-3, .gradient_scale = scaler.gradient_scale() * clip}, 0,
                         optimizer.parameters().size());
      if (!done.ok()) throw stormo::Error(done);
    }
    scaler.update();

    if (step == 1) first_loss = loss;
    if (world.rank() == 0 && step % 20 == 0) {
      std::printf("step %d: loss %.3f, loss scale %.0f\n", step, loss, scaler.scale());
    }
  }
  return loss < 0.8 * first_loss ? 0 : 1;
}
