#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/server/shard.h>
#include <stormo/train/server_store/served_parameters.h>

namespace stormo::train {

/// A pull that ends while the worker computes: a segment waits for its own parameters only. Shards
/// behind connections send theirs in the order of the model.
class EarlyPull {
 public:
  using Views = std::vector<server::Shard::View>;

  /// Both are borrowed.
  EarlyPull(ServedParameters& served, const std::vector<std::unique_ptr<server::Shard>>& shards)
      : served_(served), shards_(shards) {}
  void set_plan(const plan::StepPlan& plan);

  /// Begins to read all shards. kPeerLost as Shard::read().
  Status begin();
  bool under_way() const { return under_way_; }
  /// Blocks until the parameters that `segments` read have arrived, and shows them.
  Status make_readable(plan::Range segments);
  /// Blocks until all is read and shown; the views of all shards.
  Result<Views> finish();
  /// A failure has ended the step. The shards have settled what was begun.
  void abandon() { under_way_ = false; }

 private:
  Result<const std::byte*> piece(const ServedParameters::Slice& slice) const;
  Status show(std::size_t parameter);

  ServedParameters& served_;
  const std::vector<std::unique_ptr<server::Shard>>& shards_;
  std::vector<std::vector<std::size_t>> reads_;  // by segment: trainable parameters
  bool under_way_ = false;
  std::vector<std::optional<server::Shard::View>> views_;  // by shard: of those that are read
  std::vector<bool> is_shown_;                             // by parameter
};

}  // namespace stormo::train
