#pragma once

#include <stormo/train/options.h>
#include <stormo/train/population/population_store.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The task of a member that learns from others (codistillation): its loss of a batch is that of
/// `task`, plus weight * T^2 times the cross entropy of its own prediction with the mean prediction
/// of the store's copies of other members. Predictions are the softmax of logits / T; those of
/// copies are computed in evaluation mode, and gradients do not go there. In the first
/// `how.burn_in` steps, with weight 0 and before there are copies the loss is that of `task`.
///
/// `task` has outputs [..., classes]. Its forward has to compute a batch in one piece, and the loss
/// of that batch comes before the next forward. `store` is borrowed.
Task distilled(const Task& task, PopulationStore& store, const DistillationOptions& how);

}  // namespace stormo::train
