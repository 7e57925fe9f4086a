#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe.h>

// What a run that goes on from a checkpoint may have changed in its recipe since.
namespace stormo::train {

enum class OnResume {
  kFree,     ///< changes what is reported, kept or how fast it goes
  kNamed,    ///< changes what is trained: only if the user has named the key
  kRefused,  ///< the checkpoint is of another run or model
};

/// The rule for a key of recipe_fields().
OnResume on_resume(std::string_view key);

/// A key that has another value now; values as in to_json().
struct RecipeChange {
  std::string key, before, now;
  OnResume rule;
};

/// The keys that differ between two recipes as to_json() writes them, in the order of the schema.
/// A key that `before` lacks has its default there. A strategy that trains the same counts as
/// kFree: from one that averages gradients in each step to another.
std::vector<RecipeChange> recipe_changes(std::string_view before, std::string_view now);

/// Keys of `recipe` that are open (OpenKeys) get the values that they have in `saved`, a recipe as
/// to_json() writes it, so that a run that goes on does not change what it trains. But for those
/// that `accepted` has (keys, or sections), or that the strategy in `saved` does not use.
void keep_choices(Recipe& recipe, std::string_view saved, std::span<const std::string> accepted);

/// kInvalidArgument lists changes that are refused, and those that are neither given on the command
/// line nor in `accepted`: keys, or sections ("optimizer"). `parsed`: null for the options of a
/// program.
Status check_changes(std::span<const RecipeChange> changes, const ParsedRecipe* parsed,
                     std::span<const std::string> accepted);

}  // namespace stormo::train
