#include <stormo/train/blocks/block_checkpoint.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <torch/utils.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

/// How long the ranks of a run that has been ended may take to go.
constexpr Duration kEndOfRun = std::chrono::seconds(3);

constexpr const char* kWeights = "optimizer.blocks.weights";      // [blocks]
constexpr const char* kConflicts = "optimizer.blocks.conflicts";  // [pairs, 2]; absent: no pairs
constexpr const char* kCounts = "optimizer.blocks.counts";        // [5]
constexpr const char* kSchedule = "blocks";                       // key of the manifest's state

template <class Number>
torch::Tensor copied(const std::vector<Number>& values, torch::ScalarType type) {
  torch::Tensor out = torch::empty({std::ssize(values)}, type);
  std::memcpy(out.mutable_data_ptr(), values.data(), values.size() * sizeof(Number));
  return out;
}

template <class Number>
std::vector<Number> copied(const torch::Tensor& from) {
  std::vector<Number> out(static_cast<std::size_t>(from.numel()));
  std::memcpy(out.data(), from.contiguous().const_data_ptr(), out.size() * sizeof(Number));
  return out;
}

TensorMap to_tensors(const BlockState& state) {
  const std::vector<std::int64_t> counts = {state.schedule.rounds, state.schedule.draws,
                                            state.samples, state.updates,
                                            static_cast<std::int64_t>(state.order_hash)};
  TensorMap out{{kWeights, copied(state.schedule.weights, torch::kFloat64)},
                {kCounts, copied(counts, torch::kInt64)}};
  std::vector<std::int32_t> pairs;
  for (const auto [a, b] : state.conflicts) pairs.insert(pairs.end(), {a, b});
  if (!pairs.empty()) out[kConflicts] = copied(pairs, torch::kInt32).view({-1, 2});
  return out;
}

Result<BlockState> from_tensors(const TensorMap& tensors) {
  const auto find = [&](const char* name, torch::ScalarType type) {
    const auto found = tensors.find(name);
    const bool fits = found != tensors.end() && found->second.scalar_type() == type;
    return fits ? found->second : torch::Tensor();
  };
  const torch::Tensor weights = find(kWeights, torch::kFloat64);
  const torch::Tensor counts = find(kCounts, torch::kInt64);
  const torch::Tensor pairs = find(kConflicts, torch::kInt32);
  const bool has_pairs = tensors.contains(kConflicts);
  if (!weights.defined() || !counts.defined() || counts.numel() != 5 ||
      (has_pairs && (!pairs.defined() || pairs.numel() % 2 != 0))) {
    return Status(Code::kCorrupt, "the state of training by blocks is not whole");
  }
  const auto numbers = copied<std::int64_t>(counts);
  BlockState state{
      .schedule = {.rounds = numbers[0], .draws = numbers[1], .weights = copied<double>(weights)},
      .samples = numbers[2],
      .updates = numbers[3],
      .order_hash = static_cast<std::uint64_t>(numbers[4]),
      .conflicts = {}};
  if (state.samples < 0) return Status(Code::kCorrupt, "a number of samples is below 0");
  const auto blocks = has_pairs ? copied<std::int32_t>(pairs) : std::vector<std::int32_t>();
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    state.conflicts.push_back({blocks[i], blocks[i + 1]});
  }
  return state;
}

Status check_schedule(const checkpoint::Manifest& manifest, const std::string& schedule) {
  const auto state = nlohmann::json::parse(manifest.state_json, nullptr, false);
  if (!state.contains(kSchedule) || !state[kSchedule].is_string()) {
    return invalid_argument("it was not written by training by blocks");
  }
  const auto theirs = state[kSchedule].get<std::string>();
  if (theirs == schedule) return {};
  return invalid_argument("it was written with " + theirs + ", this run has " + schedule +
                          "; go on with the same");
}

}  // namespace

BlockCheckpoint::BlockCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                                 const TrainerOptions& options, std::string schedule)
    : world_(world), module_(module), options_(options), schedule_(std::move(schedule)) {}

Status BlockCheckpoint::check(const std::string& directory, const std::string& schedule) {
  STORMO_ASSIGN_OR_RETURN(const std::string path, checkpoint::newest_checkpoint(directory));
  STORMO_ASSIGN_OR_RETURN(const auto manifest, checkpoint::check_checkpoint(path, false));
  return check_schedule(manifest, schedule).within(path);
}

Status BlockCheckpoint::begin_on_rank_0() {
  STORMO_RETURN_IF_ERROR(check_names(named_state(module_)));
  STORMO_RETURN_IF_ERROR(checkpoint::probe_checkpoint_directory(options_.checkpoint.directory));
  STORMO_RETURN_IF_ERROR(lock_.take(options_.checkpoint.directory, Deadline::after(kEndOfRun)));
  if (options_.resume) return {};
  STORMO_ASSIGN_OR_RETURN(run_,
                          checkpoint::begin_run(options_.checkpoint.directory, options_.overwrite));
  return {};
}

// On rank 0.
Status BlockCheckpoint::load(BlockState& state) {
  STORMO_ASSIGN_OR_RETURN(const std::string path,
                          checkpoint::newest_checkpoint(options_.checkpoint.directory));
  STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
  STORMO_RETURN_IF_ERROR(check_schedule(reader.manifest(), schedule_).within(path));
  STORMO_RETURN_IF_ERROR(read_all_into(reader, named_state(module_)).within(path));
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_optimizer_state(reader));
  Result<BlockState> loaded = from_tensors(tensors);
  if (!loaded.ok()) return loaded.status().within(path);
  state = std::move(*loaded);
  run_ = checkpoint::continued_run(reader.manifest().run);
  return {};
}

Result<std::optional<BlockState>> BlockCheckpoint::begin() {
  BlockState state;
  Result<std::string> outcome = std::string();
  if (world_.rank() == 0) {
    Status begun = begin_on_rank_0();
    if (begun.ok() && options_.resume) begun = load(state).within("resume");
    if (!begun.ok()) outcome = begun;
  }
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_outcome(world_, outcome).status());
  if (!options_.resume) return std::optional<BlockState>();
  STORMO_RETURN_IF_ERROR(broadcast_values(world_, named_state(module_)));
  TensorMap tensors = to_tensors(state);
  STORMO_RETURN_IF_ERROR(broadcast_tensors(world_, tensors));
  STORMO_ASSIGN_OR_RETURN(state, from_tensors(tensors));
  return std::optional(std::move(state));
}

Result<std::string> BlockCheckpoint::save(const BlockState& state) {
  checkpoint::Snapshot snapshot{.pieces = {},
                                .step = state.schedule.rounds,
                                .samples = state.samples,
                                .name = options_.name,
                                .recipe_json = options_.recipe_json,
                                .preprocessing_json = options_.preprocessing_json,
                                .state_json = nlohmann::json{{kSchedule, schedule_}}.dump(),
                                .torch_version = TORCH_VERSION,
                                .run = run_};
  Status taken;
  if (world_.rank() == 0) {
    TensorMap all = to_tensors(state);
    for (const auto& [name, values] : named_state(module_)) all[name] = values.detach();
    taken = add_pieces(all, snapshot.pieces);
  }
  return checkpoint::save_checkpoint(
      world_, options_.checkpoint.directory,
      taken.ok() ? Result<checkpoint::Snapshot>(std::move(snapshot)) : taken,
      options_.checkpoint.keep);
}

}  // namespace stormo::train
