#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The model of a recipe's run as a checkpoint holds it, with all that is needed to use it: nothing
/// of the training data is looked at.
struct TrainedModel {
  std::string checkpoint;  ///< its folder
  std::int64_t step = 0;
  Recipe recipe;
  Preprocessing preprocessing;
  Task task;  ///< its module holds the trained values, in evaluation mode
};

/// The model in the checkpoint folder `path`. `overrides` are those of recipes, but only of keys
/// that say where other data lie and how they are written (data.path, data.test, ...).
/// kInvalidArgument lists everything that is wrong, one line each: overrides that would make
/// another model; a checkpoint of a program of its own, or of an import, which holds weights alone.
/// kNotFound and kCorrupt as CheckpointReader.
Result<TrainedModel> load_trained_model(const std::string& path,
                                        std::span<const std::string> overrides = {});

}  // namespace stormo::train
