#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The order of the computations of each micro-batch of a plan: forward, loss, backward or its two
/// parts, and a recompute before the backward of what is not kept; and a move wherever it crosses
/// from one stage of a pipeline to another.
class MicroBatches {
 public:
  /// `plan` is borrowed.
  explicit MicroBatches(const plan::StepPlan& plan);

  /// The next action of segments, or loss: kBadPlan where it is out of order.
  Status next(const plan::Action& a);

  /// kBadPlan for an action before which a micro-batch has no whole backward.
  Status all_computed() const;
  /// kBadPlan at the end of a step in which a micro-batch has no loss or no whole backward.
  Status complete() const;

 private:
  struct MicroBatch {
    int forward = 0;   // segments done
    int backward = 0;  // segments done
    bool loss = false;
    std::vector<plan::Range> forwards;      // as they were cut
    std::vector<plan::Range> to_recompute;  // forwards that keep their input only
    std::vector<plan::Range> weights_left;  // whose gradients of the input are there, and no others
    // what was moved: outputs, or their gradients, by the segment in front of the boundary
    std::set<std::pair<bool, int>> moved;
  };
  /// The first without a whole backward; else as many as there are.
  std::size_t first_left() const;
  Status forward(MicroBatch& m, plan::Range range);
  Status loss(MicroBatch& m) const;
  Status recompute(MicroBatch& m, plan::Range range) const;
  Status backward(MicroBatch& m, const plan::Action& a);
  Status move(MicroBatch& m, const plan::Action& a) const;
  MicroBatch& of(const plan::Action& a) { return all_[static_cast<std::size_t>(a.micro_batch)]; }

  const plan::ModelShape& model_;
  int segments_;
  std::vector<MicroBatch> all_;
};

}  // namespace stormo::analysis
