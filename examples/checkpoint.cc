// Checkpoints in a loop of your own: one call restores model, optimizer and position, one call
// saves them, on any number of ranks.
//
//   stormo run -n 2 -- build/release/bin/example_checkpoint runs/example
//
// Run it again and it goes on where it stopped. Without a folder it uses a temporary one and
// resumes within one run.
#include <cstdio>
#include <filesystem>

#include <stormo/stormo.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kBatch = 64;  // samples of a rank and step

/// Trains `steps` more steps from where the checkpoints in `folder` end; their mean loss.
double train(stormo::World& world, const std::string& folder, std::int64_t steps) {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  stormo::train::RunCheckpoint checkpoint(world, *net, optimizer, folder, {.name = "example"});
  stormo::train::TrainingPosition at = checkpoint.restore();
  stormo::DistributedDataParallel ddp(world, net);
  const std::int64_t first = at.step, last = first + steps;
  double sum = 0;
  while (at.step < last) {
    torch::manual_seed(static_cast<std::uint64_t>(at.step * world.size() + world.rank()));
    const torch::Tensor x = torch::randn({kBatch, 8});
    const torch::Tensor target = (x.select(1, 0) > 0).to(torch::kInt64);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), target);
    loss.backward();
    optimizer.step();
    sum += loss.item<double>();
    ++at.step;
    at.samples += kBatch * world.size();
    if (at.step % 50 == 0) checkpoint.save(at);
  }
  const double mean = sum / static_cast<double>(steps);
  if (world.rank() == 0) {
    std::printf("steps %lld to %lld: mean loss %.4f\n", static_cast<long long>(first),
                static_cast<long long>(last), mean);
  }
  return mean;
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
