#pragma once

#include <string>
#include <variant>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {

/// A value as it was written, before the schema says what it must be.
struct RawValue {
  using List = std::vector<RawValue>;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List> value;
};

/// Puts `raw` into its place in `recipe`; kInvalidArgument says what it must be instead.
Status assign(const RecipeField& field, const RawValue& raw, Recipe& recipe);

/// The value of an override: text for text fields, else TOML; lists may also be written "1,2,3".
/// A monostate when it cannot be read as what the field is.
RawValue parse_override_value(const RecipeField& field, const std::string& text);

}  // namespace stormo::train
