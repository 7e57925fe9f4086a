#pragma once

#include <functional>

#include <cli/trained/arguments.h>
#include <stormo/base/status.h>
#include <stormo/train/predict/trained_model.h>

namespace stormo::cli {

/// What `evaluate`, `sample` and `predict` have in common: opens the checkpoint, the newest or
/// the best one in that folder, calls `use` with its model, alone on all cores, and returns the
/// exit code. Failures are printed under the name of `command`.
int with_trained_model(const char* command, const ModelChoice& choice,
                       const std::function<Status(const train::TrainedModel&)>& use);

}  // namespace stormo::cli
