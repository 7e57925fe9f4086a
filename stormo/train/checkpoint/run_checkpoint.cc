#include <stormo/train/checkpoint/run_checkpoint.h>

#include <array>
#include <span>
#include <utility>

#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/train/checkpoint/loop_state.h>
#include <stormo/train/optimizer/optimizer_archive.h>

namespace stormo::train {

RunCheckpoint::RunCheckpoint(comm::Communicator& world, std::unique_ptr<LoopState> state,
                             std::string directory, RunCheckpointOptions options)
    : world_(world),
      state_(std::move(state)),
      directory_(std::move(directory)),
      options_(std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             torch::optim::Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(
          world,
          replicated_state(module, {.state = [&optimizer] { return archive_of(optimizer); },
                                    .load =
                                        [&optimizer](const TensorMap& state) {
                                          return load_archive(optimizer, state);
                                        }}),
          std::move(directory), std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world,
                    replicated_state(module, {.state = [&optimizer] { return optimizer.state(); },
                                              .load =
                                                  [&optimizer](const TensorMap& state) {
                                                    return optimizer.load_state(state);
                                                  }}),
                    std::move(directory), std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, FullyShardedDataParallel& fsdp,
                             FusedOptimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world, sharded_state(fsdp, optimizer), std::move(directory),
                    std::move(options)) {}

RunCheckpoint::RunCheckpoint(RunCheckpoint&&) noexcept = default;
RunCheckpoint::~RunCheckpoint() = default;

TrainingPosition RunCheckpoint::restore() {
  Result<std::string> found = std::string();
  checkpoint::RunIdentity run;
  TrainingPosition progress;
  if (world_.rank() == 0 && !options_.overwrite) {
    found = checkpoint::newest_checkpoint(directory_);
    if (found.status().code() == Code::kNotFound) found = std::string();
    if (found.ok() && !found->empty()) {
      const Status read = read_position(*found, progress, run);
      if (!read.ok()) found = read.within(*found);
    }
  }
  const std::string path = checkpoint::broadcast_outcome(world_, found).take_or_throw();
  if (path.empty()) return {};
  throw_if_error(state_->load(world_, path));
  std::array numbers{progress.step, progress.samples, progress.epoch};
  throw_if_error(world_.broadcast(std::span<std::int64_t>(numbers), 0));
  run_ = run;
  last_ = path;
  return {numbers[0], numbers[1], numbers[2]};
}

// On rank 0.
Status RunCheckpoint::read_position(const std::string& path, TrainingPosition& progress,
                                    checkpoint::RunIdentity& run) {
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
  const checkpoint::Manifest& manifest = reader.manifest();
  const auto state = nlohmann::json::parse(manifest.state_json, nullptr, false);
  const bool has_epoch = state.contains("epoch") && state["epoch"].is_number_integer();
  progress = {manifest.step, manifest.samples, has_epoch ? state["epoch"].get<std::int64_t>() : 0};
  run = checkpoint::continued_run(manifest.run);
  return {};
}

std::string RunCheckpoint::save(const TrainingPosition& progress) {
  last_ = checkpoint::save_checkpoint(world_, directory_, snapshot(progress), options_.keep)
              .take_or_throw();
  return last_;
}

void RunCheckpoint::export_model(const std::string& file) {
  if (last_.empty()) {
    throw Error(invalid_argument("export_model: nothing was saved or restored yet; save() first"));
  }
  Result<std::string> mine = file;
  if (world_.rank() == 0) {
    const Status status = checkpoint::export_checkpoint(last_, file, /*optimizer=*/false);
    if (!status.ok()) mine = status;
  }
  (void)checkpoint::broadcast_outcome(world_, mine).take_or_throw();
}

Result<checkpoint::Snapshot> RunCheckpoint::snapshot(const TrainingPosition& progress) {
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
  try {
    STORMO_RETURN_IF_ERROR(state_->add_pieces(world_, s));
  } catch (const Error& e) {  // so that the other ranks hear of it
    return e.status();
  }
  return s;
}

}  // namespace stormo::train
