#include <fmt/format.h>

#include <string_view>

#include <stormo/train/recipe/recipe.h>
#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {
namespace {

/// "train.steps" is {"train", "steps"}; "name" is {"", "name"}.
std::pair<std::string_view, std::string_view> split_key(std::string_view key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

std::string to_toml(const Recipe& recipe) {
  std::string out;
  std::string_view open;
  for (const RecipeField& field : recipe_fields()) {
    const auto [section, name] = split_key(field.key);
    if (section != open) out += fmt::format("\n[{}]\n", section);
    open = section;
    out += fmt::format("{} = {}\n", name, format_value(field, recipe));
  }
  return out;
}

std::string to_json(const Recipe& recipe) {
  std::string out = "{";
  std::string_view open;
  bool first = true;
  for (const RecipeField& field : recipe_fields()) {
    const auto [section, name] = split_key(field.key);
    const bool new_section = section != open;
    if (new_section && !open.empty()) out += "}";
    if (!first) out += ",";
    if (new_section) out += fmt::format("\"{}\":{{", section);
    open = section;
    out += fmt::format("\"{}\":{}", name, format_value(field, recipe));
    first = false;
  }
  return out + (open.empty() ? "}" : "}}");
}

std::string recipe_reference() {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  const Recipe defaults;
  for (const RecipeField& field : recipe_fields()) {
    out += fmt::format("| `{}` | {} | `{}` | {} |\n", field.key, type_name(field),
                       format_value(field, defaults), field.doc);
  }
  return out;
}

}  // namespace stormo::train
