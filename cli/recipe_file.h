#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace stormo::cli {

/// The file of a recipe: `word` where there is such a file; else that of the recipe named so among
/// those that come with Stormo ("mnist"), in the installation or build of this program; else
/// `word`. Throws CLI::ValidationError for a script.
std::string recipe_file(const std::string& word);

/// A recipe may be given to this option by its name, too.
CLI::Option* take_recipe_names(CLI::Option* option);

/// The names of the recipes that come with Stormo, in order; none where they are not installed.
std::vector<std::string> recipe_names();

}  // namespace stormo::cli
