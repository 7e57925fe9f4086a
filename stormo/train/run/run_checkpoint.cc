#include <stormo/train/run/run_checkpoint.h>

#include <array>
#include <utility>

#include <torch/utils.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/optimizer/torch_optimizer.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             std::string directory, RunCheckpointOptions options)
    : world_(world),
      module_(module),
      directory_(std::move(directory)),
      options_(std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             torch::optim::Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world, module, std::move(directory), std::move(options)) {
  optimizer_state_ = [&optimizer] { return archive_of(optimizer); };
  load_optimizer_ = [&optimizer](const TensorMap& state) { return load_archive(optimizer, state); };
}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world, module, std::move(directory), std::move(options)) {
  optimizer_state_ = [&optimizer] { return optimizer.state(); };
  load_optimizer_ = [&optimizer](const TensorMap& state) { return optimizer.load_state(state); };
}

TrainingPosition RunCheckpoint::restore() {
  Result<std::string> found = std::string();
  TensorMap optimizer;
  TrainingPosition progress;
  if (world_.rank() == 0 && !options_.overwrite) {
    found = checkpoint::newest_checkpoint(directory_);
    if (found.status().code() == Code::kNotFound) found = std::string();
    if (found.ok() && !found->empty()) {
      const Status loaded = load(*found, optimizer, progress);
      if (!loaded.ok()) found = loaded.within(*found);
    }
  }
  const std::string path = checkpoint::broadcast_outcome(world_, found).take_or_throw();
  if (path.empty()) return {};
  throw_if_error(broadcast_values(world_, named_state(module_)));
  throw_if_error(broadcast_tensors(world_, optimizer));
  if (world_.rank() != 0) throw_if_error(load_optimizer_(optimizer).within(path));
  std::array numbers{progress.step, progress.samples, progress.epoch};
  throw_if_error(world_.broadcast(std::span<std::int64_t>(numbers), 0));
  return {numbers[0], numbers[1], numbers[2]};
}

// On rank 0.
Status RunCheckpoint::load(const std::string& path, TensorMap& optimizer,
                           TrainingPosition& progress) {
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
  STORMO_RETURN_IF_ERROR(read_all_into(reader, named_state(module_)));
  STORMO_ASSIGN_OR_RETURN(optimizer, read_optimizer_state(reader));
  // What was imported has none: the optimizer begins anew.
  if (!optimizer.empty()) STORMO_RETURN_IF_ERROR(load_optimizer_(optimizer));
  optimizer = optimizer_state_();
  const checkpoint::Manifest& manifest = reader.manifest();
  const auto state = nlohmann::json::parse(manifest.state_json, nullptr, false);
  const bool has_epoch = state.contains("epoch") && state["epoch"].is_number_integer();
  progress = {manifest.step, manifest.samples, has_epoch ? state["epoch"].get<std::int64_t>() : 0};
  run_ = checkpoint::continued_run(manifest.run);
  return {};
}

std::string RunCheckpoint::save(const TrainingPosition& progress) {
  return checkpoint::save_checkpoint(world_, directory_, snapshot(progress), options_.keep)
      .take_or_throw();
}

// Replicas are written by the ranks of the first host, an equal part each: so hosts need no common
// file system. What may differ between ranks is rank 0's alone.
Result<checkpoint::Snapshot> RunCheckpoint::snapshot(const TrainingPosition& progress) {
  STORMO_RETURN_IF_ERROR(check_names(named_state(module_)));
  if (world_.rank() == 0 && run_.id.empty()) {
    STORMO_ASSIGN_OR_RETURN(run_, checkpoint::begin_run(directory_, options_.overwrite));
  }
  checkpoint::Snapshot s{.pieces = {},
                         .step = progress.step,
                         .samples = progress.samples,
                         .name = options_.name,
                         .recipe_json = "{}",
                         .state_json = nlohmann::json{{"epoch", progress.epoch}}.dump(),
                         .torch_version = TORCH_VERSION,
                         .run = run_};
  if (world_.cross_rank() != 0) return s;
  TensorMap equal, own = optimizer_state_();
  for (const auto& p : module_.named_parameters()) equal[p.key()] = p.value().detach();
  for (const auto& b : module_.named_buffers()) own[b.key()] = b.value().detach();
  STORMO_RETURN_IF_ERROR(add_pieces(equal, s.pieces));
  s.pieces = checkpoint::share_of(s.pieces, world_.local_rank(), world_.local_size());
  if (world_.rank() == 0) STORMO_RETURN_IF_ERROR(add_pieces(own, s.pieces));
  return s;
}

}  // namespace stormo::train
