#pragma once

#include <stormo/base/status.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// Whether ranks have parameters of their own, and no servers: they train on by themselves, and
/// average or mix them.
bool trains_locally(Strategy::Kind kind);

/// What elastic training (TrainerOptions::commits) does not take, all of it.
Status check_elastic(const TrainerOptions& options);

}  // namespace stormo::train
