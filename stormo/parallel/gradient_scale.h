#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Scales the loss, and undoes that before the update, of which nothing becomes where a gradient
/// has overflowed (train::GradScaler). Before clip_gradients() and passes that cut the optimizer's
/// state. Fails with kBadPlan for a plan without an update, or that scales already.
Pass scale_loss();

/// Clips the gradients by their norm before the update. Before passes that cut the optimizer's
/// state. Fails with kBadPlan for a plan without an update, or that clips already.
Pass clip_gradients();

}  // namespace stormo::parallel
