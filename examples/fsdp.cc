// Fully sharded training in a loop of your own: each rank keeps its part of the parameters, of the
// gradients and of the optimizer's state, and has whole layers only while they compute.
//
//   stormo run -n 2 -- build/release/bin/example_fsdp [STAGE]
//
// C++ modules have no forward hooks, so forward goes through `fsdp`: of a Sequential (or a
// stormo::model::Chain) as a whole, of other modules block by block, see docs/fsdp.md.
#include <cstdio>
#include <cstdlib>

#include <stormo/stormo.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  stormo::World world = stormo::init();

  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  stormo::ShardingOptions options;
  options.stage = argc > 1 ? std::atoi(argv[1]) : 3;
  stormo::FullyShardedDataParallel fsdp(world, net, options);  // everyone gets rank 0's weights

  stormo::train::OptimizerOptions adamw;
  adamw.kind = stormo::train::OptimizerOptions::Kind::kAdamW;
  adamw.lr = 1e-3;
  const auto optimizer = fsdp.make_optimizer(adamw);

  const int global_batch = 64, mine = global_batch / world.size();
  fsdp.set_weight(mine);  // batches of unequal sizes count by their samples

  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));  // other samples on each rank
  for (int step = 1; step <= 200; ++step) {
    const torch::Tensor x = torch::randn({mine, 64});
    const torch::Tensor target = x.narrow(1, 0, 10).argmax(1);

    const torch::Tensor loss = torch::nn::functional::cross_entropy(fsdp.forward(x), target);
    loss.backward();  // each rank has the averaged gradient of its part when this returns
    fsdp.clip_gradients(1.0);
    fsdp.step(*optimizer, adamw.lr);

    if (world.rank() == 0 && step % 50 == 0) {
      const auto memory = fsdp.memory_report(optimizer.get());
      std::printf("step %d: loss %.3f on %d rank(s), %.0f KiB of model state on each\n", step,
                  loss.item<double>(), world.size(), static_cast<double>(memory.total()) / 1024);
    }
    fsdp.zero_grad();
  }

  const auto whole = fsdp.gathered();  // the plain module again, while `whole` lives
  const torch::Tensor x = torch::randn({1000, 64});
  const auto correct = net->forward(x).argmax(1).eq(x.narrow(1, 0, 10).argmax(1)).sum();
  if (world.rank() == 0) std::printf("%ld of 1000 correct\n", correct.item<long>());
  return correct.item<long>() > 500 ? 0 : 1;
}
