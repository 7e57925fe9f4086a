#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <stormo/train/recipe/recipe.h>

namespace stormo::train {

/// Pointer to a value inside a Recipe.
using FieldPlace =
    std::variant<std::int64_t*, std::uint64_t*, int*, bool*, double*, std::string*,
                 std::vector<std::int64_t>*, std::vector<double>*, std::vector<std::string>*,
                 OptimizerOptions::Kind*, LearningRateOptions::Kind*, Strategy::Kind*,
                 Strategy::Parameters*, Reducer*, Codec::Kind*, protocol::PolicyOptions::Kind*,
                 protocol::Compensation*, server::PlacementRule*, server::ShardUpdates*,
                 data::Sharding*, plan::AttentionForm*, parallel::OuterOptimizer::Kind*,
                 Strategy::AverageState*, OptimizerOptions::AdjustLr*>;

/// One key of a recipe. The table of all keys is their only list: parsing, suggestions, printing
/// and the reference use it.
struct RecipeField {
  std::string_view key;  ///< "train.steps"
  std::string_view doc;
  FieldPlace (*place)(Recipe&);
  double min = std::numeric_limits<double>::lowest();  ///< of numbers, inclusive
  double max = std::numeric_limits<double>::max();
  std::vector<std::string_view> choices = {};  ///< of texts and enumerations; empty: any
  /// Of a key that may also be kAutoWord: where that is noted. Its place then has the default.
  bool* (*open)(Recipe&) = nullptr;
};
inline constexpr std::string_view kAutoWord = "auto";

std::span<const RecipeField> recipe_fields();
/// Whether the key is open in this recipe.
bool is_open(const RecipeField& field, const Recipe& recipe);
/// Gives the key in `to` the value that it has in `from`.
void copy_value(const RecipeField& field, const Recipe& from, Recipe& to);
/// Null if there is none of this key.
const RecipeField* find_field(std::string_view key);

/// What a key and its value for nothing were called before. Checkpoints of that time have them.
struct FormerKey {
  std::string_view key, now;
  std::string_view nothing, nothing_now;
};
std::span<const FormerKey> former_keys();

/// Whether ranks of one run may have different values of this key: paths of data (whose content is
/// compared) and numbers of threads.
bool may_differ(const RecipeField& field);

/// "whole number", "list of texts", "one of sgd, adamw".
std::string type_name(const RecipeField& field);

/// The value as TOML text, e.g. `[784, 10]` or `"gpt"`; also valid JSON.
std::string format_value(const RecipeField& field, const Recipe& recipe);

}  // namespace stormo::train
