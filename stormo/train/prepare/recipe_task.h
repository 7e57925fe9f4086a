#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/observe/records.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The data of a recipe, read and checked completely.
struct RecipeData {
  std::shared_ptr<const data::Dataset> train;
  std::vector<EvalSplit> splits;
  Preprocessing preprocessing;
  std::vector<observe::DataRecord> records;  ///< of train and splits
  std::vector<std::string> warnings;  ///< one line for each file that was left out on request
  std::vector<std::string> hints;     ///< what looks like a mistake of the recipe
};

/// The type of the parameters and of the input.
torch::ScalarType scalar_type(const Recipe& recipe);

/// Reads and checks all splits. kNotFound, kCorrupt or kInvalidArgument name the file, what is
/// wrong with it and the remedy; also for data that do not fit the recipe's model.
Result<RecipeData> load_data(const Recipe& recipe);

/// Reads only the held-out splits, with the preprocessing of the training. The training split is
/// not read; RecipeData::train stays empty. Errors as above.
Result<RecipeData> load_held_out(const Recipe& recipe, const Preprocessing& preprocessing);

/// OK if the recipe's model takes samples of this form, and has an output for each class.
Status check_fit(const Recipe& recipe, const Preprocessing& data);

enum class InitialValues {
  kNow,
  kLater,   ///< a Trainer makes them, and no more of them than its rank has
  kWithout  ///< for plans: of a model that may be too large for one process
};

/// The model of a recipe, with its loss, in the recipe's precision. The initial weights depend only
/// on the seed. With kLater and kWithout they have no memory yet (model::ValuesLater); with kLater
/// the first `kept` bytes of them have.
Result<Task> make_task(const Recipe& recipe, const Preprocessing& preprocessing,
                       InitialValues values = InitialValues::kNow, std::int64_t kept = 0);

/// The recipe of this rank's model: a member of a population has initial weights of its own.
Recipe recipe_of_member(Recipe recipe, Rank rank);

/// Returns `prompt` and options.length generated tokens; the random numbers depend only on `seed`.
/// An empty prompt means the beginning of a line. Only for the task of a "gpt". kInvalidArgument
/// for a prompt with characters that the vocabulary lacks.
Result<std::string> continue_text(const Task& task, const Preprocessing& preprocessing,
                                  const std::string& prompt, const SampleOptions& options,
                                  std::uint64_t seed);

/// OK if a run may continue from its checkpoint directory: it has a complete, undamaged checkpoint
/// of this recipe's model, and what changes its training is named: on the command line, or in
/// `accepted` (check_changes()).
Status check_resume(const ParsedRecipe& parsed, std::span<const std::string> accepted = {});

/// OK if `data` give the same preprocessing as the checkpoint in the recipe's directory has: the
/// same classes, vocabulary, columns and scales; and if the training samples are the same, or
/// `accepted` has "data". OK if there is no checkpoint.
Status check_same_data(const Recipe& recipe, const RecipeData& data,
                       std::span<const std::string> accepted = {});

}  // namespace stormo::train
