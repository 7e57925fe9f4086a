#include <stormo/train/checkpoint/run_checkpoint.h>

#include <array>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/checkpoint/run_state.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/optimizer_archive.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

/// What a RunCheckpoint saves beside the position of a loop: a model and its optimizer.
class LoopState {
 public:
  virtual ~LoopState() = default;
  /// A collective: fills both from the checkpoint at `path`. The same failure on all ranks.
  virtual Status load(comm::Communicator& world, const std::string& path) = 0;
  /// What this rank writes; borrowed.
  virtual Status add_pieces(comm::Communicator& world, checkpoint::Snapshot& out) const = 0;
};

namespace {

/// The state of an optimizer of replicas: read, and replaced.
struct OptimizerAccess {
  std::function<TensorMap()> state;
  std::function<Status(const TensorMap&)> load;
};

/// Replicas: rank 0 reads, and the ranks of its host write, an equal part each; so hosts need no
/// common file system. Buffers, and the archive of an optimizer, are those of rank 0.
class ReplicatedState final : public LoopState {
 public:
  ReplicatedState(torch::nn::Module& module, OptimizerAccess optimizer)
      : module_(module), optimizer_(std::move(optimizer)) {}

  Status load(comm::Communicator& world, const std::string& path) override {
    TensorMap optimizer;
    Result<std::string> read = path;
    if (world.rank() == 0) {
      const Status mine = read_files(path, optimizer).within(path);
      if (!mine.ok()) read = mine;
    }
    STORMO_RETURN_IF_ERROR(checkpoint::broadcast_outcome(world, read).status());
    STORMO_RETURN_IF_ERROR(broadcast_values(world, named_state(module_)));
    STORMO_RETURN_IF_ERROR(broadcast_tensors(world, optimizer));
    return world.rank() == 0 ? Status() : optimizer_.load(optimizer).within(path);
  }

  Status add_pieces(comm::Communicator& world, checkpoint::Snapshot& out) const override {
    STORMO_RETURN_IF_ERROR(check_names(named_state(module_)));
    if (world.cross_rank() != 0) return {};
    TensorMap equal, own = optimizer_.state();
    for (const auto& p : module_.named_parameters()) equal[p.key()] = p.value().detach();
    for (const auto& b : module_.named_buffers()) own[b.key()] = b.value().detach();
    STORMO_RETURN_IF_ERROR(train::add_pieces(equal, out.pieces));
    out.pieces = checkpoint::share_of(out.pieces, world.local_rank(), world.local_size());
    return world.rank() == 0 ? train::add_pieces(own, out.pieces) : Status();
  }

 private:
  Status read_files(const std::string& path, TensorMap& optimizer) {
    STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
    STORMO_RETURN_IF_ERROR(read_all_into(reader, named_state(module_)));
    STORMO_ASSIGN_OR_RETURN(optimizer, read_optimizer_state(reader));
    // What was imported has none: the optimizer begins anew.
    if (!optimizer.empty()) STORMO_RETURN_IF_ERROR(optimizer_.load(optimizer));
    optimizer = optimizer_.state();
    return {};
  }

  torch::nn::Module& module_;
  OptimizerAccess optimizer_;
};

/// Shards: every rank reads and writes its own.
class ShardedState final : public LoopState {
 public:
  ShardedState(FullyShardedDataParallel& fsdp, FusedOptimizer& optimizer)
      : fsdp_(fsdp), optimizer_(optimizer) {}

  Status load(comm::Communicator& world, const std::string& path) override {
    std::vector<torch::Tensor> values;  // of state(), in its order
    const Status mine = read_files(world, path, values).within(path);
    STORMO_RETURN_IF_ERROR(comm::check_agreement(world, {}, mine));
    const torch::NoGradGuard no_grad;
    const std::vector<TensorPiece> pieces = fsdp_.state();
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].values.detach().copy_(values[i]);
    fsdp_.parameters_changed();
    return broadcast_values(world, fsdp_.buffers());
  }

  Status add_pieces(comm::Communicator& world, checkpoint::Snapshot& out) const override {
    STORMO_RETURN_IF_ERROR(check_names(all()));
    if (world.rank() == 0) STORMO_RETURN_IF_ERROR(train::add_pieces(fsdp_.buffers(), out.pieces));
    if (!fsdp_.has_first_copy()) return {};
    for (const TensorPiece& p : fsdp_.state()) STORMO_RETURN_IF_ERROR(add_piece(p, out.pieces));
    for (const TensorPiece& p : optimizer_.state_pieces()) {
      STORMO_RETURN_IF_ERROR(add_piece(p, out.pieces));
    }
    return {};
  }

 private:
  TensorMap all() const {
    TensorMap out = fsdp_.shapes();
    out.merge(fsdp_.buffers());
    return out;
  }

  /// Changes the optimizer, and on rank 0 the buffers, after everything has been checked.
  Status read_files(comm::Communicator& world, const std::string& path,
                    std::vector<torch::Tensor>& values) {
    STORMO_ASSIGN_OR_RETURN(auto reader, checkpoint::CheckpointReader::open(path));
    STORMO_RETURN_IF_ERROR(check_same_model(reader.manifest(), all()));
    STORMO_RETURN_IF_ERROR(
        check_optimizer_state(reader.manifest(), optimizer_, optimizer_.options()));
    const auto read = [&reader](const std::string& name, std::int64_t begin, std::int64_t end) {
      return read_range(reader, name, begin, end);
    };
    for (const TensorPiece& p : fsdp_.state()) {
      STORMO_ASSIGN_OR_RETURN(torch::Tensor part, read(p.name, p.begin, p.end));
      values.push_back(std::move(part));
    }
    STORMO_RETURN_IF_ERROR(optimizer_.load_state(read));
    return world.rank() == 0 ? read_into(reader, fsdp_.buffers()) : Status();
  }

  FullyShardedDataParallel& fsdp_;
  FusedOptimizer& optimizer_;
};

}  // namespace

RunCheckpoint::RunCheckpoint(comm::Communicator& world, std::unique_ptr<LoopState> state,
                             std::string directory, RunCheckpointOptions options)
    : world_(world),
      state_(std::move(state)),
      directory_(std::move(directory)),
      options_(std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             torch::optim::Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world,
                    std::make_unique<ReplicatedState>(
                        module, OptimizerAccess{[&optimizer] { return archive_of(optimizer); },
                                                [&optimizer](const TensorMap& state) {
                                                  return load_archive(optimizer, state);
                                                }}),
                    std::move(directory), std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                             Optimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world,
                    std::make_unique<ReplicatedState>(
                        module, OptimizerAccess{[&optimizer] { return optimizer.state(); },
                                                [&optimizer](const TensorMap& state) {
                                                  return optimizer.load_state(state);
                                                }}),
                    std::move(directory), std::move(options)) {}

RunCheckpoint::RunCheckpoint(comm::Communicator& world, FullyShardedDataParallel& fsdp,
                             FusedOptimizer& optimizer, std::string directory,
                             RunCheckpointOptions options)
    : RunCheckpoint(world, std::make_unique<ShardedState>(fsdp, optimizer), std::move(directory),
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
    STORMO_ASSIGN_OR_RETURN(
        run_, checkpoint::begin_run(directory_, options_.overwrite,
                                    "go on from there with restore(), choose another folder, or "
                                    "replace what is there with RunCheckpointOptions::overwrite"));
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
