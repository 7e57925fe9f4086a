#include <stormo/train/run_state.h>

#include <array>
#include <map>

#include <torch/utils.h>
#include <torch/version.h>

#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/train/broadcast.h>
#include <stormo/train/checkpoint.h>

namespace stormo::train {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

/// Step and seed say which samples come next, on any number of ranks, and what the generators give.
std::string state_json(std::uint64_t seed) {
  return R"({"seed":)" + std::to_string(seed) +
         R"(,"data_order":"seed, epoch","generators":"seed, step, rank"})";
}

/// A model tensor under the optimizer's name could not be told from its state.
Status check_names(const Tensors& tensors) {
  for (const auto& [name, t] : tensors) {
    if (is_optimizer_state(name)) {
      return invalid_argument("'" + name +
                              "': checkpoints keep names that begin with 'optimizer.' for the "
                              "optimizer's state; rename that submodule");
    }
  }
  return {};
}

/// The checkpoint must hold nothing of a model but these.
Status check_no_others(const checkpoint::Manifest& manifest, const Tensors& tensors) {
  for (const auto& [name, saved] : manifest.tensors) {
    if (is_optimizer_state(name) || tensors.contains(name)) continue;
    return invalid_argument("the checkpoint belongs to another model: '" + name +
                            "' is not part of this one; resume with the model that wrote it, or "
                            "give another directory");
  }
  return {};
}

}  // namespace

RunState::RunState(comm::Communicator& world, torch::nn::Module& module, Optimizer& optimizer,
                   const TrainerOptions& options)
    : world_(world), module_(module), optimizer_(optimizer), options_(options) {}

Status RunState::start() {
  const Tensors tensors = named_state(module_);
  STORMO_RETURN_IF_ERROR(check_same_tensors(world_, tensors));
  if (!options_.checkpoint.directory.empty()) STORMO_RETURN_IF_ERROR(check_names(tensors));
  if (world_.rank() == 0) {
    if (!options_.checkpoint.directory.empty()) {
      STORMO_RETURN_IF_ERROR(checkpoint::probe_checkpoint_directory(options_.checkpoint.directory));
    }
    if (options_.resume) STORMO_RETURN_IF_ERROR(load_newest().within("resume"));
  }
  STORMO_RETURN_IF_ERROR(broadcast_values(world_, tensors));
  return options_.resume ? share_progress() : Status();
}

Status RunState::load_newest() {
  STORMO_ASSIGN_OR_RETURN(const std::string path,
                          checkpoint::newest_checkpoint(options_.checkpoint.directory));
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
  const Tensors tensors = named_state(module_);
  STORMO_RETURN_IF_ERROR(check_no_others(reader.manifest(), tensors).within(path));
  Result<Tensors> state = read_optimizer_state(reader);
  if (!state.ok()) return state.status().within(path);
  STORMO_RETURN_IF_ERROR(read_into(reader, tensors).within(path));
  STORMO_RETURN_IF_ERROR(optimizer_.load_state(*state).within(path));
  step = reader.manifest().step;
  samples = reader.manifest().samples;
  return {};
}

Status RunState::share_progress() {
  std::array progress{step, samples};
  STORMO_RETURN_IF_ERROR(world_.broadcast(comm::buffer_of(std::span<std::int64_t>(progress)), 0));
  step = progress[0];
  samples = progress[1];
  Tensors tensors = optimizer_.state();
  STORMO_RETURN_IF_ERROR(broadcast_tensors(world_, tensors));
  return world_.rank() == 0 ? Status() : optimizer_.load_state(tensors);
}

// The state is equal on all ranks: those of the first host write it together, so that hosts need no
// common file system.
Result<checkpoint::Snapshot> RunState::snapshot() const {
  checkpoint::Snapshot s{.pieces = {},
                         .step = step,
                         .samples = samples,
                         .name = options_.name,
                         .recipe_json = options_.recipe_json,
                         .state_json = state_json(options_.seed),
                         .torch_version = TORCH_VERSION};
  if (world_.cross_rank() != 0) return s;
  Tensors model = named_state(module_);
  // A forward changes buffers: they are copied now, parameters before the next update.
  for (const auto& b : module_.named_buffers()) model[b.key()] = b.value().detach().clone();
  STORMO_RETURN_IF_ERROR(add_pieces(model, s.pieces));
  STORMO_RETURN_IF_ERROR(add_pieces(optimizer_.state(), s.pieces));
  s.pieces = checkpoint::share_of(s.pieces, world_.local_rank(), world_.local_size());
  return s;
}

Result<std::string> RunState::save() {
  STORMO_RETURN_IF_ERROR(finish_save().status());
  STORMO_RETURN_IF_ERROR(share_buffers());
  return checkpoint::save_checkpoint(world_, options_.checkpoint.directory, snapshot(),
                                     options_.checkpoint.keep);
}

Result<std::string> RunState::begin_save() {
  if (background_ == nullptr) {
    STORMO_ASSIGN_OR_RETURN(
        background_, checkpoint::AsyncCheckpoint::create(world_, options_.checkpoint.directory,
                                                         options_.checkpoint.keep));
  }
  STORMO_RETURN_IF_ERROR(share_buffers());
  STORMO_RETURN_IF_ERROR(background_->begin(snapshot()));
  return checkpoint::checkpoint_path(options_.checkpoint.directory, step);
}

void RunState::before_update() {
  if (background_ != nullptr) background_->before_update();
}

Result<std::string> RunState::finish_save() {
  return background_ == nullptr ? std::string() : background_->finish();
}

Status RunState::share_buffers() {
  Tensors buffers;
  for (const auto& b : module_.named_buffers()) buffers.emplace(b.key(), b.value());
  return broadcast_values(world_, buffers);
}

}  // namespace stormo::train
