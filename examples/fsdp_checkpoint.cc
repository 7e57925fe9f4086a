// Checkpoints of a sharded model in a loop of your own: one call restores parameters, optimizer and
// position, one call saves them, one call writes the model for Python. Any number of ranks goes on.
//
//   stormo run -n 2 -- build/release/bin/example_fsdp_checkpoint runs/example
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
  stormo::FullyShardedDataParallel fsdp(world, net);
  stormo::train::OptimizerOptions adamw;
  adamw.kind = stormo::train::OptimizerOptions::Kind::kAdamW;
  const auto optimizer = fsdp.make_optimizer(adamw);

  stormo::train::RunCheckpoint checkpoint(world, fsdp, *optimizer, folder, {.name = "example"});
  stormo::train::TrainingPosition at = checkpoint.restore();  // zero where there is none
  const std::int64_t first = at.step, last = first + steps;
  double sum = 0;
  while (at.step < last) {
    torch::manual_seed(static_cast<std::uint64_t>(at.step * world.size() + world.rank()));
    const torch::Tensor x = torch::randn({kBatch, 8});
    const torch::Tensor target = (x.select(1, 0) > 0).to(torch::kInt64);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(fsdp.forward(x), target);
    loss.backward();
    fsdp.step(*optimizer, /*lr=*/0.01);
    fsdp.zero_grad();
    sum += loss.item<double>();
    ++at.step;
    at.samples += kBatch * world.size();
    if (at.step % 50 == 0) checkpoint.save(at);
  }
  const std::string file = folder + "/model-" + std::to_string(at.step) + ".safetensors";
  checkpoint.export_model(file);
  const double mean = sum / static_cast<double>(steps);
  if (world.rank() == 0) {
    std::printf("steps %lld to %lld: mean loss %.4f; the model is in %s\n",
                static_cast<long long>(first), static_cast<long long>(last), mean, file.c_str());
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
  const std::string folder = std::filesystem::temp_directory_path() / "stormo-example-fsdp";
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  stormo::throw_if_error(world.communicator().barrier());
  const double before = train(world, folder, 100);
  const double after = train(world, folder, 100);
  stormo::throw_if_error(world.communicator().barrier());
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  return after < before ? 0 : 1;
}
