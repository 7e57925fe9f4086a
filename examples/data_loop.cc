// Samples dealt to the ranks and loaded ahead of time, in a loop of your own:
//
//   stormo run -n 2 -- build/release/bin/example_data_loop
//
// The Sampler says which samples this rank takes in each step: every sample exactly once per epoch,
// on any number of ranks. The Prefetcher loads them on threads of its own. A cursor, the number of
// samples used so far over all ranks, is all that a checkpoint has to keep to go on from there.
#include <cstdio>
#include <vector>

#include <stormo/stormo.h>
#include <torch/torch.h>

int main() {
  stormo::World world = stormo::init();
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({1000, 8});
  const torch::Tensor targets = inputs.narrow(1, 0, 4).argmax(1);
  const auto dataset =
      stormo::data::TensorDataset::create(inputs, targets, torch::kFloat32).take_or_throw();

  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  stormo::DistributedDataParallel ddp(world, net);  // everyone gets rank 0's weights
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);

  const stormo::data::Sampler sampler(dataset->size(), /*global_batch=*/64, /*seed=*/7,
                                      /*shuffle=*/true, world.rank(), world.size());
  std::int64_t cursor = 0;  // of the checkpoint, when there is one
  stormo::data::Prefetcher batches(dataset, sampler, cursor, /*depth=*/2);

  std::vector<std::int64_t> used(1000);
  double loss_value = 0;
  while (cursor < 5 * dataset->size()) {  // five epochs, their last batches are smaller
    const auto [slice, batch] = batches.next().take_or_throw();
    ddp.set_weight(static_cast<double>(batch.size()));  // gradients count by their samples
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
    loss.backward();
    optimizer.step();
    cursor = slice.next;
    loss_value = loss.item<double>();
    for (const std::int64_t index : slice.indices) ++used[static_cast<std::size_t>(index)];
  }

  stormo::throw_if_error(world.communicator().all_reduce(used, stormo::comm::ReduceOp::kSum));
  for (const std::int64_t times : used) {
    if (times != 5) return 1;
  }
  if (world.rank() == 0) std::printf("every sample was used 5 times, loss %.3f\n", loss_value);
  return loss_value < 0.5 ? 0 : 1;
}
