#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/state_blocks.h>

namespace stormo::train {

/// Parameters and optimizer state of a replica, as blocks: what members of an elastic job compare,
/// and what one gets that joins. It shares the tensors.
class TrainingState {
 public:
  /// `optimizer` is a FusedOptimizer of whole parameters, and is borrowed. Gives every parameter
  /// its state.
  explicit TrainingState(Optimizer& optimizer);

  /// The slices in which another process gets it. Each is the state of some elements of a
  /// parameter, of all where the update rule needs norms: so its next update follows from the slice
  /// alone.
  std::size_t slices() const { return slices_.size(); }
  /// Those that a state of these parameters has.
  static std::size_t count_slices(const std::vector<NamedParameter>& parameters,
                                  const OptimizerOptions& options);
  std::size_t bytes(std::size_t slice) const;
  /// For each element: its weight, and the slots of the optimizer.
  std::size_t tensors() const { return tensors_; }
  /// Copies a slice to or from host memory.
  void read(std::size_t slice, std::byte* to) const;
  void write(std::size_t slice, const std::byte* from);
  /// Of all blocks and counts of steps; never 0.
  std::uint64_t hash() const;
  std::vector<std::int64_t> steps() const { return optimizer_.steps(); }
  void set_steps(std::span<const std::int64_t> steps) { optimizer_.set_steps(steps); }
  /// After slices were written.
  void finish() { optimizer_.round_masters(); }

 private:
  FusedOptimizer& optimizer_;
  StateBlocks blocks_;
  std::size_t tensors_ = 1;
  std::vector<std::vector<std::size_t>> slices_;  // blocks of each
};

/// A hash of the gradients of one step, for comparison between ranks: of a window of them that
/// moves from step to step; never 0.
std::uint64_t hash_of_gradients(const Optimizer& optimizer, std::uint64_t step);

}  // namespace stormo::train
