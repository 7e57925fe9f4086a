#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Scales the loss, and undoes the scale before the update, which is skipped if a gradient has
/// overflowed (train::GradScaler). Apply it before clip_gradients() and before passes that shard
/// the optimizer's state. Fails with kBadPlan for a plan without an update, or that scales the loss
/// already.
Pass scale_loss();

/// Clips the gradients by their norm before the update. Apply it before passes that shard the
/// optimizer's state. Fails with kBadPlan for a plan without an update, or that clips already.
Pass clip_gradients();

}  // namespace stormo::parallel
