#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {
namespace {

std::string text_value(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string number_value(double value) {
  // The shortest form that reads back the same, with a point so that TOML takes it for a float.
  const std::string text = fmt::format("{}", value);
  const bool is_float = text.find_first_of(".en") != std::string::npos;
  return is_float ? text : text + ".0";
}

struct Formatter {
  const RecipeField& field;

  template <class T>
  std::string operator()(const T* value) const {
    if constexpr (std::is_same_v<T, double>) {
      return number_value(*value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return text_value(*value);
    } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
      return fmt::format("[{}]", fmt::join(*value, ", "));
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      std::vector<std::string> numbers;
      for (const double number : *value) numbers.push_back(number_value(number));
      return fmt::format("[{}]", fmt::join(numbers, ", "));
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      std::vector<std::string> texts;
      for (const std::string& text : *value) texts.push_back(text_value(text));
      return fmt::format("[{}]", fmt::join(texts, ", "));
    } else if constexpr (std::is_enum_v<T>) {
      return text_value(std::string(field.choices[static_cast<std::size_t>(*value)]));
    } else {
      return fmt::format("{}", *value);
    }
  }
};

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

}  // namespace

std::string type_name(const RecipeField& field) {
  if (!field.choices.empty()) return fmt::format("one of {}", fmt::join(field.choices, ", "));
  Recipe any;
  return std::visit(TypeName{}, field.place(any));
}

std::string format_value(const RecipeField& field, const Recipe& recipe) {
  Recipe copy = recipe;
  return std::visit([&](auto* value) { return Formatter{field}(value); }, field.place(copy));
}

}  // namespace stormo::train
