#include <stormo/train/run_state.h>

#include <array>
#include <map>

#include <torch/utils.h>

#include <stormo/train/broadcast.h>
#include <stormo/train/checkpoint.h>

namespace stormo::train {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

Status foreign(const std::string& what) {
  return invalid_argument("the checkpoint belongs to another model: " + what +
                          "; resume with the model that wrote it, or give another directory");
}

// Checks everything before it changes anything.
Status copy_values(const Tensors& from, const Tensors& to) {
  for (const auto& [name, t] : to) {
    const auto found = from.find(name);
    if (found == from.end()) return foreign("it has no '" + name + "'");
    if (found->second.sizes() != t.sizes() || found->second.scalar_type() != t.scalar_type()) {
      return foreign("'" + name + "' is of another shape or type");
    }
  }
  for (const auto& [name, t] : from) {
    if (!to.contains(name)) return foreign("'" + name + "' is not part of this one");
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, t] : to) t.detach().copy_(from.at(name));
  return {};
}

}  // namespace

RunState::RunState(comm::Communicator& world, torch::nn::Module& module, Optimizer& optimizer,
                   const TrainerOptions& options)
    : world_(world), module_(module), optimizer_(optimizer), options_(options) {}

Status RunState::start() {
  const Tensors tensors = named_state(module_);
  STORMO_RETURN_IF_ERROR(check_same_tensors(world_, tensors));
  if (world_.rank() == 0) {
    if (!options_.checkpoint.directory.empty()) {
      STORMO_RETURN_IF_ERROR(probe_checkpoint_directory(options_.checkpoint.directory));
    }
    if (options_.resume) STORMO_RETURN_IF_ERROR(load_newest().within("resume"));
  }
  STORMO_RETURN_IF_ERROR(broadcast_values(world_, tensors));
  return options_.resume ? share_progress() : Status();
}

Status RunState::load_newest() {
  STORMO_ASSIGN_OR_RETURN(const std::string path, newest_checkpoint(options_.checkpoint.directory));
  STORMO_ASSIGN_OR_RETURN(const Snapshot snapshot, load_checkpoint(path));
  STORMO_RETURN_IF_ERROR(copy_values(snapshot.model, named_state(module_)).within(path));
  STORMO_RETURN_IF_ERROR(optimizer_.load_state(snapshot.optimizer).within(path));
  step = snapshot.step;
  samples = snapshot.samples;
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

Result<std::string> RunState::save() {
  STORMO_RETURN_IF_ERROR(share_buffers());
  if (world_.rank() != 0) return std::string();
  const Snapshot snapshot{.model = named_state(module_),
                          .optimizer = optimizer_.state(),
                          .step = step,
                          .samples = samples,
                          .name = options_.name,
                          .recipe_json = options_.recipe_json};
  return save_checkpoint(options_.checkpoint.directory, snapshot, options_.checkpoint.keep);
}

Status RunState::share_buffers() {
  Tensors buffers;
  for (const auto& b : module_.named_buffers()) buffers.emplace(b.key(), b.value());
  return broadcast_values(world_, buffers);
}

}  // namespace stormo::train
