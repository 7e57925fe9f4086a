#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stormo::cli {

/// What to say of a name that is none of `names`: all of them, and the nearest.
std::string unknown_name(std::string_view flag, std::string_view name,
                         const std::vector<std::string_view>& names);

/// The row with this name. Null if there is none, which is then appended to `wrong`.
template <typename Row>
const Row* find_row(std::span<const Row> rows, std::string_view name, std::string_view flag,
                    std::vector<std::string>& wrong) {
  std::vector<std::string_view> names;
  for (const Row& row : rows) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  wrong.push_back(unknown_name(flag, name, names));
  return nullptr;
}

/// Each of `given` that is one of `known`, once; appends the others to `wrong`.
std::vector<std::string> known_names(std::span<const std::string_view> known,
                                     const std::vector<std::string>& given, std::string_view flag,
                                     std::vector<std::string>& wrong);

}  // namespace stormo::cli
