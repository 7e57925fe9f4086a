#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/train/recipe/recipe_schema.h>

// What the lists of keys are written with.
namespace stormo::train {

inline constexpr double kMost =
    1e15;  // counts; well inside what a double and an int64 hold exactly

inline std::vector<std::string_view> names(const std::vector<std::string>& list) {
  return {list.begin(), list.end()};
}

inline std::vector<std::string_view> one_of(std::initializer_list<std::string_view> texts) {
  return {texts.begin(), texts.end()};
}

/// Keys that say how ranks share a run: the strategy, gradients, servers, averages.
std::vector<RecipeField> distribution_fields();

}  // namespace stormo::train
