#pragma once

#include <functional>
#include <span>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/trained_model.h>

namespace stormo::cli {

/// What `evaluate`, `sample` and `predict` have in common: opens the checkpoint at `path`, or the
/// newest one in that folder, calls `use` with its model, alone on all cores, and returns the exit
/// code. Failures are printed under the name of `command`.
int with_trained_model(const char* command, const std::string& path,
                       std::span<const std::string> overrides,
                       const std::function<Status(train::TrainedModel&)>& use);

}  // namespace stormo::cli
