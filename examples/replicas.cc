// Replicas as threads of one process, without a launcher; batches normalised over all of them:
//
//   build/release/bin/example_replicas 4
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <stormo/stormo.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  const int replicas = argc > 1 ? std::atoi(argv[1]) : 2;
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({256, 64});
  const torch::Tensor target = x.narrow(1, 0, 10).argmax(1);
  std::vector<torch::nn::Sequential> nets;  // made here: the generator is one for all threads
  for (int r = 0; r < replicas; ++r) {
    nets.emplace_back(torch::nn::Linear(64, 256), torch::nn::BatchNorm1d(256), torch::nn::ReLU(),
                      torch::nn::Linear(256, 10));
  }

  stormo::run_replicas(replicas, [&](stormo::comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const torch::Tensor my_x = x.tensor_split(replicas)[rank];
    const torch::Tensor my_target = target.tensor_split(replicas)[rank];

    const auto norms = std::make_shared<stormo::SyncBatchNormGroup>(world);
    auto net = stormo::convert_sync_batch_norm(nets[rank], norms);
    stormo::DistributedDataParallel ddp(world, net);
    ddp.set_weight(static_cast<double>(my_x.size(0)));
    norms->set_weight(static_cast<double>(my_x.size(0)));

    torch::optim::AdamW optimizer(net->parameters(), 1e-3);
    for (int step = 1; step <= 50; ++step) {
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(net->forward(my_x), my_target);
      loss.backward();  // both exchange among the replicas
      optimizer.step();
      if (world.rank() == 0 && step % 10 == 0) {
        std::printf("step %d: loss %.3f on %d replica(s)\n", step, loss.item<double>(),
                    world.size());
      }
    }
  });
}
