#include <stormo/train/recipe/recipe_value.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>

#include <stormo/base/text.h>
#include <stormo/base/units.h>

namespace stormo::train {
namespace {

constexpr std::size_t kMostOfValue = 100;  // characters of a wrong value

std::string show(const RawValue& raw) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "something else"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t i) const { return fmt::format("{}", i); }
    std::string operator()(double d) const { return fmt::format("{}", d); }
    std::string operator()(const std::string& s) const {
      return fmt::format("\"{}{}\"", s.substr(0, kMostOfValue),
                         s.size() > kMostOfValue ? "..." : "");
    }
    std::string operator()(const RawValue::List&) const { return "a list"; }
  };
  return std::visit(Visitor{}, raw.value);
}

Status must_be(const RecipeField& field, const RawValue& raw) {
  return invalid_argument(fmt::format("must be {}, not {}", type_name(field), show(raw)));
}

Status check_range(const RecipeField& field, double value) {
  if (value >= field.min && value <= field.max) return ok_status();
  return invalid_argument(value < field.min
                              ? fmt::format("must be at least {}, not {}", field.min, value)
                              : fmt::format("must be at most {}, not {}", field.max, value));
}

std::optional<double> as_number(const RawValue& raw) {
  if (const auto* d = std::get_if<double>(&raw.value)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(&raw.value)) return static_cast<double>(*i);
  return std::nullopt;
}

/// Devices for which other programs have a strategy.
constexpr std::string_view kDevices[] = {"cuda", "gpu", "hpu", "mps", "npu",
                                         "rocm", "tpu", "xla", "xpu"};

Status unknown_choice(const RecipeField& field, const std::string& text) {
  const std::string_view near = nearest_match(text.substr(0, kMostOfValue), field.choices);
  const bool is_device =
      field.key == "strategy.kind" && std::ranges::find(kDevices, text) != std::end(kDevices);
  return invalid_argument(fmt::format(
      "{}must be one of {}, not {}{}", is_device ? "Stormo trains on CPUs only: it " : "",
      fmt::join(field.choices, ", "), show({text}),
      near.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", near)));
}

template <class Element>
std::optional<Element> as_element(const RawValue& raw) {
  if constexpr (std::is_same_v<Element, double>) {
    return as_number(raw);
  } else {
    const auto* element = std::get_if<Element>(&raw.value);
    return element == nullptr ? std::nullopt : std::optional<Element>(*element);
  }
}

template <class Element>
Status assign_list(const RecipeField& field, const RawValue& raw, std::vector<Element>& place) {
  const auto* list = std::get_if<RawValue::List>(&raw.value);
  if (list == nullptr) return must_be(field, raw);
  std::vector<Element> elements;
  for (const RawValue& item : *list) {
    const std::size_t number = elements.size() + 1;
    const std::optional<Element> element = as_element<Element>(item);
    if (!element) {
      return invalid_argument(
          fmt::format("must be a {}, but element {} is {}", type_name(field), number, show(item)));
    }
    if constexpr (!std::is_same_v<Element, std::string>) {
      STORMO_RETURN_IF_ERROR(check_range(field, static_cast<double>(*element))
                                 .within(fmt::format("element {}", number)));
    }
    elements.push_back(*element);
  }
  place = std::move(elements);
  return ok_status();
}

Status assign_choice(const RecipeField& field, const std::string& text, std::size_t& index) {
  const auto found = std::find(field.choices.begin(), field.choices.end(), text);
  if (found == field.choices.end()) return unknown_choice(field, text);
  index = static_cast<std::size_t>(found - field.choices.begin());
  return ok_status();
}

struct Assigner {
  const RecipeField& field;
  const RawValue& raw;

  Status operator()(std::string* place) const {
    const auto* text = std::get_if<std::string>(&raw.value);
    if (text == nullptr) return must_be(field, raw);
    std::size_t index = 0;
    if (!field.choices.empty()) STORMO_RETURN_IF_ERROR(assign_choice(field, *text, index));
    *place = *text;
    return ok_status();
  }
  Status operator()(double* place) const {
    const auto number = as_number(raw);
    if (!number) return must_be(field, raw);
    STORMO_RETURN_IF_ERROR(check_range(field, *number));
    *place = *number;
    return ok_status();
  }
  Status operator()(bool* place) const {
    const auto* flag = std::get_if<bool>(&raw.value);
    if (flag == nullptr) return must_be(field, raw);
    *place = *flag;
    return ok_status();
  }
  template <class Element>
  Status operator()(std::vector<Element>* place) const {
    return assign_list(field, raw, *place);
  }
  template <class T>
  Status operator()(T* place) const {
    if constexpr (std::is_enum_v<T>) {
      const auto* text = std::get_if<std::string>(&raw.value);
      if (text == nullptr) return must_be(field, raw);
      std::size_t index = 0;
      STORMO_RETURN_IF_ERROR(assign_choice(field, *text, index));
      *place = static_cast<T>(index);
    } else {
      const auto* whole = std::get_if<std::int64_t>(&raw.value);
      if (whole == nullptr) return must_be(field, raw);
      STORMO_RETURN_IF_ERROR(check_range(field, static_cast<double>(*whole)));
      *place = static_cast<T>(*whole);
    }
    return ok_status();
  }
};

std::vector<std::string> split_list(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> parts;
  for (std::string_view part : split(text, ',')) {
    const auto strip = [&](std::string_view characters) {
      const std::size_t first = std::min(part.find_first_not_of(characters), part.size());
      part.remove_prefix(first);
      part = part.substr(0, part.find_last_not_of(characters) + 1);
    };
    strip(" ");
    strip("\"'");
    parts.emplace_back(part);
  }
  return parts;
}

/// Reads what a person types for a number or a flag; text when it is neither.
RawValue scalar(const std::string& text) {
  if (text == "true" || text == "false") return {text == "true"};
  const std::string_view digits = std::string_view(text).substr(text.starts_with('+') ? 1 : 0);
  if (const auto whole = number_in<std::int64_t>(digits)) return {*whole};
  if (const auto number = number_in<double>(digits)) return {*number};
  return {text};
}

}  // namespace

Status assign(const RecipeField& field, const RawValue& raw, Recipe& recipe) {
  return std::visit(Assigner{field, raw}, field.place(recipe));
}

RawValue parse_override_value(const RecipeField& field, const std::string& text) {
  Recipe any;
  const FieldPlace place = field.place(any);
  if (std::holds_alternative<std::vector<std::int64_t>*>(place) ||
      std::holds_alternative<std::vector<double>*>(place) ||
      std::holds_alternative<std::vector<std::string>*>(place)) {
    const bool texts = std::holds_alternative<std::vector<std::string>*>(place);
    RawValue::List list;
    for (const std::string& part : split_list(text)) {
      list.push_back(texts ? RawValue{part} : scalar(part));
    }
    return {std::move(list)};
  }
  if (std::holds_alternative<std::string*>(place)) return {text};
  return scalar(text);
}

}  // namespace stormo::train
