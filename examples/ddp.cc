// Data parallel training in a loop of your own, on an unmodified module:
//
//   stormo run -n 2 -- build/release/bin/example_ddp
#include <cstdio>

#include <stormo/stormo.h>
#include <torch/torch.h>

int main() {
  stormo::World world = stormo::init();

  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  stormo::DistributedDataParallel ddp(world, net);  // everyone gets rank 0's weights
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);

  const int global_batch = 64, mine = global_batch / world.size();
  ddp.set_weight(mine);  // batches of unequal sizes count by their samples

  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));  // other samples on each rank
  for (int step = 1; step <= 200; ++step) {
    const torch::Tensor x = torch::randn({mine, 64});
    const torch::Tensor target = x.narrow(1, 0, 10).argmax(1);

    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), target);
    loss.backward();  // the gradients are averaged over all ranks when this returns
    optimizer.step();

    if (world.rank() == 0 && step % 50 == 0) {
      std::printf("step %d: loss %.3f on %d rank(s)\n", step, loss.item<double>(), world.size());
    }
  }
}
