#include <stormo/train/checkpoint/loop_state.h>

#include <utility>
#include <vector>

#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/checkpoint/run_state.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

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

std::unique_ptr<LoopState> replicated_state(torch::nn::Module& module, OptimizerAccess optimizer) {
  return std::make_unique<ReplicatedState>(module, std::move(optimizer));
}

std::unique_ptr<LoopState> sharded_state(FullyShardedDataParallel& fsdp,
                                         FusedOptimizer& optimizer) {
  return std::make_unique<ShardedState>(fsdp, optimizer);
}

}  // namespace stormo::train
