// Checkpoints in a loop of your own: saved by all ranks, loaded by any number of them.
//
//   stormo run -n 2 -- build/release/bin/example_checkpoint runs/example
//
// Run it again and it goes on where it stopped. Without a folder it uses a temporary one and
// resumes within one run.
#include <array>
#include <cstdio>
#include <filesystem>

#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/stormo.h>
#include <stormo/train/checkpoint.h>
#include <torch/torch.h>

using stormo::checkpoint::CheckpointReader;

namespace {

/// Rank 0's newest step, 0 when there is none; its weights go to everybody with the construction of
/// DistributedDataParallel.
std::int64_t load(stormo::World& world, const std::string& folder, torch::nn::Module& module) {
  std::int64_t step = 0;
  const auto newest = stormo::checkpoint::newest_checkpoint(folder);
  if (world.rank() == 0 && newest.ok()) {
    CheckpointReader reader = CheckpointReader::open(*newest).take_or_throw();
    stormo::throw_if_error(stormo::train::read_into(reader, stormo::train::named_state(module)));
    step = reader.manifest().step;
  }
  std::array<std::int64_t, 1> shared{step};
  stormo::throw_if_error(
      world.communicator().broadcast(stormo::comm::buffer_of(std::span<std::int64_t>(shared)), 0));
  return shared[0];
}

void save(stormo::World& world, const std::string& folder, const torch::nn::Module& module,
          std::int64_t step) {
  stormo::checkpoint::Snapshot snapshot{.pieces = {}, .step = step, .name = "example"};
  stormo::throw_if_error(
      stormo::train::add_pieces(stormo::train::named_state(module), snapshot.pieces));
  // replicas hold the same: each rank writes a part
  snapshot.pieces = stormo::checkpoint::share_of(snapshot.pieces, world.rank(), world.size());
  (void)stormo::checkpoint::save_checkpoint(world, folder, snapshot, /*keep=*/2).take_or_throw();
}

double train(stormo::World& world, const std::string& folder, std::int64_t steps) {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2));
  const std::int64_t first = load(world, folder, *net);
  stormo::DistributedDataParallel ddp(world, net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  double last = 0;
  for (std::int64_t step = first; step < first + steps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step * world.size() + world.rank()));
    const torch::Tensor x = torch::randn({64, 8});
    const torch::Tensor target = (x.select(1, 0) > 0).to(torch::kInt64);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), target);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  save(world, folder, *net, first + steps);
  if (world.rank() == 0) {
    std::printf("steps %lld to %lld: loss %.4f\n", static_cast<long long>(first),
                static_cast<long long>(first + steps), last);
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  stormo::World world = stormo::init();
  if (argc > 1) {
    (void)train(world, argv[1], 100);
    return 0;
  }
  const std::string folder = std::filesystem::temp_directory_path() / "stormo-example-checkpoint";
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  stormo::throw_if_error(world.communicator().barrier());
  const double before = train(world, folder, 100);
  const double after = train(world, folder, 100);
  stormo::throw_if_error(world.communicator().barrier());
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  return after < before ? 0 : 1;
}
