#pragma once

#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// The evaluator of a cluster: evaluates each new checkpoint in the recipe's folder, which must be
/// on a file system that it shares with the first worker. Blocks until it has evaluated that of the
/// last step, or `stop_fd` becomes readable: then kInterrupted.
Status evaluate_checkpoints(const train::Recipe& recipe, bool json, int stop_fd);

}  // namespace stormo::cli
