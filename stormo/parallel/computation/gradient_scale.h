#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Scales the loss, and undoes the scale before the update, which is skipped if a gradient has
/// overflowed (train::GradScaler). With parameter servers it is undone before the push, and each
/// worker decides alone. Apply it before clip_gradients() and before passes that shard the
/// optimizer's state. Fails with kBadPlan for a plan without an update or push, or that scales the
/// loss already.
Pass scale_loss();

/// Clips the gradients by their norm before the update; with parameter servers each worker clips
/// its own before the push. Apply it before passes that shard the optimizer's state. Fails with
/// kBadPlan for a plan without an update or push, or that clips already.
Pass clip_gradients();

}  // namespace stormo::parallel
