#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/vocabulary.h>
#include <stormo/train/recipe.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The data of a recipe, read and checked completely.
struct RecipeData {
  std::shared_ptr<const data::Dataset> train;
  std::vector<EvalSplit> splits;
  /// Of texts; empty for images.
  std::optional<data::Vocabulary> vocabulary;
};

/// kNotFound, kCorrupt or kInvalidArgument name the file, what is wrong with it and the remedy.
Result<RecipeData> load_data(const Recipe& recipe);

/// The model of a recipe, with its loss, in the recipe's precision; weights are a function of the
/// seed.
Result<Task> make_task(const Recipe& recipe, const RecipeData& data);

/// What must hold before a run of `recipe` may continue from its checkpoint directory: there is a
/// complete, undamaged checkpoint, and it belongs to this recipe's model.
Status check_resume(const Recipe& recipe);

}  // namespace stormo::train
