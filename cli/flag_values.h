#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// All that is wrong with the words of a command, one line each.
using Wrong = std::vector<std::string>;
/// kInvalidArgument with all of it; OK where nothing is.
Status as_status(const Wrong& wrong);
/// The message, unless it is OK.
void note(const Status& status, Wrong& wrong);

// What a flag says. What it says wrong is appended to `wrong`.

/// What was made of it; nothing where it is wrong.
template <class Value>
std::optional<Value> value_or_wrong(std::string_view flag, const Result<Value>& made,
                                    Wrong& wrong) {
  if (made.ok()) return *made;
  wrong.push_back(std::string(flag) + ": " + made.status().message());
  return std::nullopt;
}
/// "250ms". Nothing where it is wrong.
std::optional<Duration> read_duration(std::string_view flag, std::string_view text, Wrong& wrong);
/// "64K", likewise.
std::optional<std::uint64_t> read_bytes(std::string_view flag, std::string_view text, Wrong& wrong);

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// "3" of "3x".
std::optional<double> factor_of(std::string_view text);
/// "2:10x" in two; the second part is empty where there is no colon.
std::pair<std::string_view, std::string_view> halves(std::string_view text);

/// What to say of a name that is none of `names`: all of them, and the nearest.
std::string unknown_name(std::string_view flag, std::string_view name,
                         const std::vector<std::string_view>& names);

/// The row with this name. Null if there is none, which is then appended to `wrong`.
template <typename Row>
const Row* find_row(std::span<const Row> rows, std::string_view name, std::string_view flag,
                    Wrong& wrong) {
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
                                     Wrong& wrong);

}  // namespace stormo::cli
