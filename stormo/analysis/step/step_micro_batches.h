#pragma once

#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The order of the computations of each micro-batch of a plan: forward, loss, backward, and a
/// recompute before the backward of what is not kept. Each function takes the next action of its
/// kind and returns kBadPlan where it is out of order.
class MicroBatches {
 public:
  explicit MicroBatches(const plan::StepPlan& plan);

  Status forward(const plan::Action& a);
  Status loss(const plan::Action& a);
  Status recompute(const plan::Action& a);
  Status backward(const plan::Action& a);

  /// kBadPlan for an action before which a micro-batch has no whole backward.
  Status all_computed() const;
  /// kBadPlan at the end of a step in which a micro-batch has no loss or no whole backward.
  Status complete() const;

 private:
  struct MicroBatch {
    int forward = 0;   // segments done
    int backward = 0;  // segments done
    bool loss = false;
    std::vector<plan::Range> forwards;   // as they were cut
    std::vector<plan::Range> forgotten;  // forwards that keep their input only
  };
  MicroBatch& of(const plan::Action& a) { return all_[static_cast<std::size_t>(a.micro_batch)]; }

  int segments_;
  std::vector<MicroBatch> all_;
};

}  // namespace stormo::analysis
