#pragma once

#include <vector>

#include <stormo/comm/agreement/agreement.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/recipe/recipe.h>

// The facts that must be equal on all ranks of a run, for check_agreement().
namespace stormo::train {

/// Every key of a recipe except those that may differ between ranks (docs/recipes.md).
std::vector<comm::Fact> recipe_facts(const Recipe& recipe);

/// Versions, options, data, model and step plan of a Trainer's run. Reads the data only through
/// Dataset::fingerprint().
std::vector<comm::Fact> run_facts(const RunSetup& setup);

}  // namespace stormo::train
