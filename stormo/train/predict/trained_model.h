#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// A trained model from a checkpoint of a recipe's run, with everything needed to use it. The
/// training data are not needed.
struct TrainedModel {
  std::string checkpoint;  ///< its folder
  std::int64_t step = 0;
  Recipe recipe;
  Preprocessing preprocessing;
  Task task;  ///< its module holds the trained values, in evaluation mode
};

/// The model in the checkpoint folder `path`. `overrides` have the form of recipes, but only keys
/// that say where other data are and how they are written are allowed (data.path, data.test, ...).
/// kInvalidArgument lists all errors, one per line: overrides that would change the model; a
/// checkpoint of a user's program or of an import, which has only weights. kNotFound and kCorrupt
/// as CheckpointReader.
Result<TrainedModel> load_trained_model(const std::string& path,
                                        std::span<const std::string> overrides = {});

}  // namespace stormo::train
