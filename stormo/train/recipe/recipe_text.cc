#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <stormo/train/recipe/recipe.h>
#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {
namespace {

std::string text_value(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class T>
std::string text_of(const RecipeField& field, const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    // The shortest form that reads back the same, with a point so that TOML takes it for a float.
    const std::string text = fmt::format("{}", value);
    return text.find_first_of(".en") != std::string::npos ? text : text + ".0";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return text_value(value);
  } else if constexpr (std::is_enum_v<T>) {
    return text_value(std::string(field.choices[static_cast<std::size_t>(value)]));
  } else {
    return fmt::format("{}", value);
  }
}

template <class Element>
std::string text_of(const RecipeField& field, const std::vector<Element>& list) {
  std::vector<std::string> texts;
  for (const Element& element : list) texts.push_back(text_of(field, element));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

struct TypeName {
  template <class T>
  std::string operator()(const T*) const {
    if constexpr (std::is_same_v<T, double>) return "number";
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, std::string>) return "text";
    if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return "list of whole numbers";
    if constexpr (std::is_same_v<T, std::vector<double>>) return "list of numbers";
    if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of texts";
    return "whole number";
  }
};

/// "train.steps" is {"train", "steps"}; "name" is {"", "name"}.
std::pair<std::string_view, std::string_view> split_key(std::string_view key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

std::string type_name(const RecipeField& field) {
  if (!field.choices.empty()) {
    return fmt::format("one of {}{}", fmt::join(field.choices, ", "),
                       field.open == nullptr ? "" : fmt::format(", {}", kAutoWord));
  }
  Recipe any;
  const std::string name = std::visit(TypeName{}, field.place(any));
  return field.open == nullptr ? name
                               : fmt::format("{}, or {}", name, text_value(std::string(kAutoWord)));
}

std::string format_value(const RecipeField& field, const Recipe& recipe) {
  if (is_open(field, recipe)) return text_value(std::string(kAutoWord));
  Recipe copy = recipe;
  return std::visit([&](const auto* value) { return text_of(field, *value); }, field.place(copy));
}

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
