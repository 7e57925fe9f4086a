#include <cli/recipe_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <cli/build_facts.h>
#include <cli/own_program.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;

/// Empty where there is none.
fs::path recipes_folder() {
  const Result<std::string> program = launching_program();
  if (!program.ok()) return {};
  const fs::path folder = fs::path(*program).parent_path();
  // beside an installed program; the link that a build has to its source
  for (const fs::path& place :
       {folder.parent_path() / kDataFolder / "stormo/recipes", folder / "source/recipes"}) {
    std::error_code ignored;
    if (fs::is_directory(place, ignored)) return place;
  }
  return {};
}

bool is_script(const std::string& path) {
  std::string begin(2, '\0');
  std::ifstream(path).read(begin.data(), std::ssize(begin));
  return begin == "#!";
}

}  // namespace

std::string recipe_file(const std::string& word) {
  std::error_code ignored;
  const bool is_here = fs::exists(word, ignored) && !fs::is_directory(word, ignored);
  const bool script = fs::is_regular_file(word, ignored) && is_script(word);
  if (is_here && !script) return word;
  const std::vector<std::string> names = recipe_names();
  const std::string name = word.ends_with(".toml") ? word.substr(0, word.size() - 5) : word;
  const bool is_known = std::ranges::count(names, name) > 0;
  if (script) {
    throw CLI::ValidationError(
        fmt::format("'{}' is a script, no recipe{}", word,
                    is_known ? fmt::format("; the recipe of that name is '{}.toml'", name) : ""));
  }
  if (!is_known) return word;
  return (recipes_folder() / (name + ".toml")).string();
}

CLI::Option* take_recipe_names(CLI::Option* option) { return option->transform(recipe_file); }

std::vector<std::string> recipe_names() {
  std::vector<std::string> out;
  const fs::path folder = recipes_folder();
  std::error_code ignored;
  if (folder.empty()) return out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".toml") out.push_back(entry.path().stem().string());
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace stormo::cli
