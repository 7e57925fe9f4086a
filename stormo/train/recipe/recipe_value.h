#pragma once

#include <string>
#include <variant>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {

/// A value as it was written, before it is checked against the schema.
struct RawValue {
  using List = std::vector<RawValue>;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List> value;
};

/// Assigns `raw` to the field of `recipe`; kInvalidArgument says which values are allowed.
Status assign(const RecipeField& field, const RawValue& raw, Recipe& recipe);

/// The value of an override: text for text fields, else TOML; lists may also be written "1,2,3". A
/// monostate when it cannot be parsed as the field's type.
RawValue parse_override_value(const RecipeField& field, const std::string& text);

}  // namespace stormo::train
