#pragma once

#include <memory>
#include <optional>
#include <string>
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
  /// Of "text"; empty for all others.
  std::optional<data::Vocabulary> vocabulary;
  std::int64_t words = 0;           ///< text_classification: ids of words, padding among them
  std::vector<std::int64_t> input;  ///< shape of a sample of numbers, e.g. {1, 28, 28}
  std::int64_t classes = 0;         ///< 0: targets are no classes
  /// What was left out on request, one line each.
  std::vector<std::string> warnings;
};

/// The type of the parameters and of the input.
torch::ScalarType scalar_type(const Recipe& recipe);

/// kNotFound, kCorrupt or kInvalidArgument name the file, what is wrong with it and the remedy;
/// also for data that the recipe's model cannot take.
Result<RecipeData> load_data(const Recipe& recipe);

/// The model of a recipe, with its loss, in the recipe's precision; weights are a function of the
/// seed.
Result<Task> make_task(const Recipe& recipe, const RecipeData& data);

/// What must hold before a run of `recipe` may continue from its checkpoint directory: there is a
/// complete, undamaged checkpoint, and it belongs to this recipe's model.
Status check_resume(const Recipe& recipe);

}  // namespace stormo::train
