#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/train/recipe/recipe.h>

namespace stormo::train {

/// What a recipe gives that training by blocks has not, one line each; defaults are right.
std::vector<std::string> check_block_recipe(const ParsedRecipe& parsed);

/// Memory that a worker needs for the conflicts of all blocks, at most.
double bytes_of_conflicts(const torch::nn::Module& module, std::int64_t units);

}  // namespace stormo::train
