#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <stormo/parallel/sharding/shard_actions.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// Which collectives and releases come between the computations of a sharded step. It is told which
/// segment computes next, and emits the actions that come before and after. The pass sharded()
/// tells it a plan's computations; FullyShardedDataParallel tells it those of the user's own loop,
/// so both do the same.
///
/// A backward pass runs the recorded forwards in reverse. Autograd takes ready nodes in the reverse
/// order of their creation: when the backward of a forward begins, all that was computed after that
/// forward is done. So the gradients of segments that no earlier forward reads are complete then,
/// with or without a gradient for each parameter, at the same place on all ranks.
class ShardingOrder {
 public:
  /// `replicas`: the plan of one replica or of mirrored ones, whose all_reduces become all_reduces
  /// of parts.
  ShardingOrder(const Sharding& how, const plan::StepPlan& replicas, ShardActions::Emit emit);

  /// A recorded forward: its backward may come as long as somebody holds this.
  struct Forward {
    std::int64_t number;  ///< in the order of forwards
    int segment;
  };
  using Call = std::shared_ptr<const Forward>;

  void before_forward(int segment);
  /// Null unless `recorded`: the forward has a backward.
  Call after_forward(int segment, bool recorded);

  /// Gradients are complete at the end of this pass if it `reduces`; else they stay where they are.
  void begin_pass(bool reduces);
  void before_backward(const Call& call);
  void end_pass();
  /// The optimizer has used the gradients.
  void after_update() { actions_.after_update(); }

  /// Whether the segment reads trainable parameters.
  bool trains(int segment) const;
  /// From now on the parameters are whole, or they are not: those of segments with trainable ones,
  /// and of the others too if `frozen`.
  void set_whole(bool whole, bool frozen);

 private:
  struct Recorded {
    int segment;
    std::weak_ptr<const Forward> call;  // expired: its backward is over, or never comes
  };
  /// By segment.
  struct Segment {
    std::vector<int> uses;  ///< the segments whose parameters it reads
    int last_user = 0;      ///< the last one that reads its parameters
    plan::Range own;
    bool trains = false;  ///< has trainable parameters of its own
    bool whole = false;   ///< its parameters are gathered, or on their way
    bool done = false;    ///< in this pass
  };
  Segment& at(int s) { return segments_[static_cast<std::size_t>(s)]; }
  const Segment& at(int s) const { return segments_[static_cast<std::size_t>(s)]; }
  int size() const { return static_cast<int>(segments_.size()); }
  void gather(int segment);
  void release(int segment);
  void complete_after(std::int64_t number);
  std::vector<std::int64_t> first_uses() const;
  void complete(int segment);

  Sharding how_;
  ShardActions actions_;
  std::vector<Segment> segments_;
  std::int64_t next_call_ = 0;
  std::map<std::int64_t, Recorded> calls_;  // by number

  // The backward pass.
  bool reduces_ = true;
  std::vector<std::int64_t> consumed_;
};

}  // namespace stormo::parallel
