#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

// clang-format off
/// OK when every action of `p` finds what it needs, and the step ends as the next one has to begin;
/// else kBadPlan that names the first action that does not, the value and its placement.
///
/// | action            | needs                                        | makes                       |
/// |-------------------|----------------------------------------------|-----------------------------|
/// | load              |                                              | batch: shard                |
/// | choose            | batch; the step says that it chooses         | what the step trains        |
/// | sum_weights       | batch                                        | weights, added up           |
/// | forward           | parameters: replicate, shared or pulled; the input | output                |
/// | loss              | output of the last segment; its axis, where ranks have parts of it | loss  |
/// | recompute         | as forward; the loss                         | what backward needs of it   |
/// | backward          | as forward; the gradient of the output       | gradients: partial, added   |
/// | move_activation   | output of its first segment                  | it, on the stage of the second |
/// | move_gradient     | gradient of its second segment's input       | it, on the stage of the first |
/// | all_gather        | parameters: shard on its axis                | parameters: replicate       |
/// | reshard           | parameters: replicate, at rest shard         | parameters: shard           |
/// | all_reduce        | gradients: partial on its axes; async: weights, unless chosen | gradients: replicate |
/// | reduce_scatter    | gradients: partial on its axis; weights      | gradients: shard; its terms |
/// | release_gradients | the terms of a reduce_scatter                | no terms                    |
/// | all_reduce_tied   | gradients: partial over the stages that read them | gradients: staged      |
/// | all_reduce_unsplit | gradients of what is not split: partial over tp; not shard | gradients: split |
/// | track             | gradients: partial, complete; parameters: diverged at rest | the same, once |
/// | find_unused       | gradients: nowhere partial, but over stages  | unused gradients are none   |
/// | share_gradients   | gradients: partial; optimizer state: shard   | gradients that others read  |
/// | share_parameters  | parameters: shard, at rest shared            | parameters: shared          |
/// | pull              | parameters: remote                           | parameters: diverged        |
/// | push              | gradients: partial, unscaled, clipped; once  | no gradients                |
/// | average           | parameters: diverged at rest, and updated    | parameters: equal, diverged |
/// |                   | parameters: remote, and the copies updated   | no gradients                |
/// |    over some axes | parameters: diverged at rest, updated, not averaged | among some ranks equal |
/// | average_parameters | as average, but not remote                  | parameters: equal, diverged |
/// | average_state     | parameters: diverged at rest, and updated    | a slot of their state: equal, diverged; once |
/// | outer_update      | parameters: averaged, in the same steps      | parameters: equal, diverged |
/// | mix               | parameters: diverged at rest, and updated    | parameters: diverged        |
/// | mix async         | parameters: diverged at rest, not updated    | what their update begins with |
/// | elastic_average   | parameters: diverged at rest; their gradients | parameters: diverged       |
/// | norm              | gradients: final                             | norm                        |
/// | unscale, clip     | norm                                         | a factor of the gradients   |
/// | update            | gradients: final; parameters, state          | parameters: placed as state |
/// | agree             | loss of each micro-batch; all is updated     | loss, on all ranks          |
///
/// Gradients are final where they are nowhere partial, or read from the ranks' memory on the axis
/// on which the optimizer's state is cut, or each rank's own where parameters are remote or diverged.
/// No terms outlive the step, and what some action reshards is in parts when it is updated: so memory
/// is released when the plan says so. Where steps overlap, actions are looked at in the order in which
/// one batch passes them (plan::order_of_batch()). docs/step-plan.md has what this means for stages,
/// slices, servers and averages. The time does not depend on the number of ranks: O(actions *
/// parameters * axes) at most. What a layout of the parameters has no place for is not looked at: see
/// train/step/layout.h.
// clang-format on
Status verify(const plan::StepPlan& p);

}  // namespace stormo::analysis
