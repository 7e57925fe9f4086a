// An update rule of your own under data parallel training: any torch::optim::Optimizer will do,
// since gradients are the average over all ranks when backward() returns.
//
//   stormo run -n 2 -- build/release/bin/example_custom_optimizer
#include <cstdio>

#include <stormo/stormo.h>
#include <torch/torch.h>

namespace {

/// w <- w - lr * sign(g), "signSGD" (Bernstein et al., 2018).
class SignSgd : public torch::optim::Optimizer {
 public:
  SignSgd(std::vector<torch::Tensor> parameters, double lr)
      : torch::optim::Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                                std::make_unique<torch::optim::SGDOptions>(lr)),
        lr_(lr) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (torch::Tensor& p : group.params()) {
        if (p.grad().defined()) p.sub_(p.grad().sign(), lr_);
      }
    }
    return {};
  }

 private:
  double lr_;
};

}  // namespace

int main() {
  stormo::World world = stormo::init();
  torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  stormo::DistributedDataParallel ddp(world, net);
  SignSgd optimizer(net->parameters(), 1e-3);

  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  double first = 0, loss_value = 0;
  for (int step = 0; step < 200; ++step) {
    const torch::Tensor x = torch::randn({32, 16});
    const torch::Tensor target = x.narrow(1, 0, 4).argmax(1);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), target);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    if (step == 0) first = loss_value;
  }
  if (world.rank() == 0) std::printf("loss %.3f -> %.3f\n", first, loss_value);
  return loss_value < 0.7 * first ? 0 : 1;
}
