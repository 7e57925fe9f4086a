#pragma once

#include <CLI/App.hpp>

#include <functional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/trained_model.h>

namespace stormo::cli {

/// Which checkpoint a user means, and what is changed in its recipe.
struct ModelChoice {
  std::string path;  ///< a checkpoint, or a folder of them
  bool best = false;
  bool json = false;  ///< records on standard output, one of an error too
  std::vector<std::string> overrides{};
};

void add_model_choice(CLI::App& command, ModelChoice& choice);

/// What `evaluate`, `sample` and `predict` have in common: opens the checkpoint, the newest or
/// the best one in that folder, calls `use` with its model, alone on all cores, and returns the
/// exit code. Failures are printed under the name of `command`.
int with_trained_model(const char* command, const ModelChoice& choice,
                       const std::function<Status(const train::TrainedModel&)>& use);

}  // namespace stormo::cli
