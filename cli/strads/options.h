#pragma once

#include <CLI/App.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cli/flag_values.h>
#include <cli/launch_flags.h>
#include <cli/simulate/options.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/protocol/strads/virtual_rounds.h>

namespace stormo::cli {

/// What a number must be, if anything, and what is said of another one: "--round: 0 is not from 1
/// to 9".
struct Need {
  std::function<bool(double)> holds;
  std::string otherwise;  ///< "is not from 1 to 9"
};
Need from(std::int64_t least, std::int64_t most);
Need above_zero();
inline constexpr std::int64_t kMostNumber = 2147483647;

/// The words that the programs of `stormo strads` have in common.
struct StradsArguments {
  StradsArguments() = default;
  StradsArguments(const StradsArguments&) = delete;  // rows borrow the values of words
  StradsArguments& operator=(const StradsArguments&) = delete;

  LaunchFlags launch;
  std::optional<int> virtual_workers;
  VirtualTimeFlags time{.compute = "1us", .latency = "10us"};
  std::string out;
  bool json = false, dry_run = false;
  protocol::ScheduleOptions schedule;  ///< without blocks, priority and rotation
  double threshold = 0.1;
  bool no_priority = false, no_check = false, cyclic = false;
  std::optional<std::int64_t> every;  ///< rounds between judgements

  bool checks() const { return !no_check && !cyclic; }

  /// A word that counts for the results: it is stated once, as a word of the command line, as what
  /// it must be, and as what all ranks must have in common.
  template <class Value>
  CLI::Option* add(CLI::App& command, const char* flag, Value& value, const std::string& help,
                   Need need = {}) {
    constexpr bool always = std::is_arithmetic_v<Value>;
    rows.push_back({flag,
                    [&value] {
                      if constexpr (always) return fmt::format("{}", value);
                      if constexpr (!always) return value ? fmt::format("{}", *value) : "(default)";
                    },
                    std::move(need)});
    if constexpr (std::is_same_v<Value, bool>) return command.add_flag(flag, value, help);
    CLI::Option* option = command.add_option(flag, value, help);
    return always ? option->capture_default_str() : option;
  }
  struct Row {
    const char* flag;
    std::function<std::string()> text;
    Need need;
  };
  std::vector<Row> rows;
};
/// `seeded`: what --seed is of.
inline constexpr const char* kSeededData = "Of made data, first values and draws";
void add_common(CLI::App& command, StradsArguments& a, const char* seeded);
/// How blocks are chosen. `in_turn`: what --cyclic does; `every`: how many rounds by default.
void add_schedule(CLI::App& command, StradsArguments& a, const char* block, const char* in_turn,
                  const char* every);

/// In virtual time, or ranks that -n and -H ask for.
int workers_of(const StradsArguments& a, Wrong& wrong);
/// What is wrong with these words. `rows`: of the data; 0: not known.
void check_common(const StradsArguments& a, int workers, std::int64_t rows, Wrong& wrong);
/// Shape of an array with so many dimensions; nothing, and a line in `wrong`, when it has others.
std::optional<std::vector<std::int64_t>> shape_of(const char* flag, const std::string& path,
                                                  std::size_t dimensions, Wrong& wrong);
/// A line in `wrong` where this host lacks the memory for so many bytes of `what`.
void check_memory(const std::string& what, double bytes, Wrong& wrong);
/// With --cyclic, rounds of `in_turn` blocks.
protocol::ScheduleOptions schedule_options(const StradsArguments& a, std::int64_t blocks,
                                           std::int64_t in_turn);
/// Nothing: real time.
std::optional<protocol::VirtualWorkers> virtual_workers_of(const StradsArguments& a, Wrong& wrong);

}  // namespace stormo::cli
