// Trains a module of its own in a loop of its own; prints rank, size and the weights' hash, which
// must be equal on all ranks.
#include <cstdio>

#include <stormo/stormo.h>
#include <torch/torch.h>

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return out->forward(torch::relu(hidden->forward(x))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(16, 256));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(256, 1));
};

int main() {
  stormo::World world = stormo::init();
  auto net = std::make_shared<Net>();
  stormo::DistributedDataParallel ddp(world, net);
  torch::optim::SGD sgd(net->parameters(), 0.05);

  torch::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));  // other samples on each rank
  double loss_value = 0;
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor x = torch::randn({32, 16});
    sgd.zero_grad();
    const torch::Tensor loss = (net->forward(x) - x.sum(1, true)).square().mean();
    loss.backward();  // gradients are averaged over all ranks when this returns
    sgd.step();
    loss_value = loss.item<double>();
  }
  double weights = 0;
  for (const auto& p : net->parameters())
    weights += p.to(torch::kFloat64).abs().sum().item<double>();
  std::printf("rank %d of %d: loss %.3f, weights %a\n", world.rank(), world.size(), loss_value,
              weights);
}
