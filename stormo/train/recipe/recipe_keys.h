#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe_schema.h>

// Keys that only some choices of another key use, and which others would ignore.
namespace stormo::train {

/// A key with a value of its own that changes nothing.
struct UnusedKey {
  const RecipeField* field;
  std::string_view choice_of;           ///< "strategy.kind": its choice does not use the key
  std::vector<std::string_view> users;  ///< the choices that do
};

/// In the order of the schema. A default is nobody's choice.
std::vector<UnusedKey> unused_keys(const Recipe& recipe);

/// Gives the key its default.
void leave_out(const RecipeField& field, Recipe& recipe);

/// For a recipe of which only a part is used.
void leave_out_unused(Recipe& recipe);

/// "strategy.bound (of strategy.policy=ssp)".
std::string to_string(const UnusedKey& key);

/// kInvalidArgument names all keys that change nothing.
Status check_keys(const Recipe& recipe);
/// The same of a program's options, as recipes call them. It may hold values for several policies.
Status check_keys(const TrainerOptions& options);

}  // namespace stormo::train
