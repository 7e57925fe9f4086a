#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/piece.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>
#include <stormo/train/state/safetensors.h>

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

/// The state of an optimizer of replicas: read, and replaced.
struct OptimizerAccess {
  std::function<TensorMap()> state;
  std::function<Status(const TensorMap&)> load;
};

/// Replicas: rank 0 reads, and the ranks of its host write, an equal part each; so hosts need no
/// common file system. Buffers, and the archive of an optimizer, are those of rank 0.
std::unique_ptr<LoopState> replicated_state(torch::nn::Module& module, OptimizerAccess optimizer);

/// Shards: every rank reads and writes its own.
std::unique_ptr<LoopState> sharded_state(FullyShardedDataParallel& fsdp, FusedOptimizer& optimizer);

}  // namespace stormo::train
