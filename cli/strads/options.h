#pragma once

#include <CLI/App.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cli/launch_flags.h>
#include <stormo/comm/agreement/agreement.h>
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

/// Options of a command that count for its results: each is stated once, as a word of the command
/// line, as what it must be, and as what all ranks must have in common. Borrows their values.
class CountingOptions {
 public:
  CountingOptions() = default;
  CountingOptions(const CountingOptions&) = delete;
  CountingOptions& operator=(const CountingOptions&) = delete;

  template <class Number>
  CLI::Option* add(CLI::App& command, const char* flag, Number& value, const std::string& help,
                   Need need = {}) {
    all_.push_back({flag, [&value] { return std::optional<double>(value); },
                    [&value] { return text_of(value); }, std::move(need)});
    CLI::Option* option = command.add_option(flag, value, help);
    return std::is_arithmetic_v<Number> ? option->capture_default_str() : option;
  }
  CLI::Option* add_flag(CLI::App& command, const char* flag, bool& value, const std::string& help);

  /// Adds what is wrong to `wrong`, one line each.
  void check(std::vector<std::string>& wrong) const;
  std::vector<comm::Fact> facts() const;

 private:
  static std::string text_of(double value);
  static std::string text_of(int value) { return std::to_string(value); }
  static std::string text_of(std::int64_t value) { return std::to_string(value); }
  static std::string text_of(std::uint64_t value) { return std::to_string(value); }
  static std::string text_of(const std::optional<std::int64_t>& value) {
    return value ? text_of(*value) : "(default)";
  }

  struct Row {
    const char* flag;
    std::function<std::optional<double>()> number;
    std::function<std::string()> text;
    Need need;
  };
  std::vector<Row> all_;
};

/// The words that all programs of `stormo strads` have in common.
struct StradsArguments {
  CountingOptions counting;
  LaunchFlags launch;
  std::optional<int> virtual_workers;
  std::string compute = "1us";
  double jitter = 0.1;
  std::string latency = "10us";
  std::vector<std::string> stragglers;  ///< "2:10x"
  std::uint64_t seed = 1;
  std::string out;
  bool json = false;
  bool dry_run = false;
};
/// `seeded`: what --seed is of.
inline constexpr const char* kSeededData = "Of made data, first values and draws";
void add_common(CLI::App& command, StradsArguments& a, const char* seeded);

/// How blocks of a round are chosen by priority, with a check.
struct ScheduleArguments {
  int round = 32;
  int depth = 0;
  double threshold = 0.1;
  double base_weight = 1e-4;
  bool no_priority = false, no_check = false, cyclic = false;
  std::optional<std::int64_t> every;  ///< rounds between judgements

  bool checks() const { return !no_check && !cyclic; }
};
/// What a block is, how many of them --cyclic updates together, and what --every is by default.
struct ScheduleWords {
  const char* block;
  const char* in_turn;
  bool one_in_turn;  // --round has no effect with --cyclic
  const char* every;
};
void add_schedule(CLI::App& command, StradsArguments& common, ScheduleArguments& a,
                  const ScheduleWords& words);

struct StradsTrainArguments {
  StradsArguments common;
  ScheduleArguments schedule;
  std::string recipe;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> rounds;  ///< default: steps of the recipe
  std::int64_t units = 1;              ///< see train::BlockTrainingOptions
  std::string checkpoint;              ///< folder; empty: that of the recipe
  bool resume = false, overwrite = false;
};

/// In virtual time, or ranks that -n and -H ask for.
int workers_of(const StradsArguments& a, std::vector<std::string>& wrong);
/// Adds everything that is wrong with the words of a command to `wrong`, one line each. `rows`: of
/// the data; 0: not known. `schedule`: null where nothing is drawn.
void check_common(const StradsArguments& a, const ScheduleArguments* schedule, std::int64_t rows,
                  std::vector<std::string>& wrong);
/// Shape of an array with so many dimensions; nothing, and a line in `wrong`, when it has others.
std::optional<std::vector<std::int64_t>> shape_of(const char* flag, const std::string& path,
                                                  std::size_t dimensions,
                                                  std::vector<std::string>& wrong);
/// OK when this host has memory for so many bytes of `what`.
Status check_memory(const std::string& what, double bytes);

// The rest is of arguments that were checked.
/// With --cyclic, rounds of `in_turn` blocks.
protocol::ScheduleOptions schedule_options(const ScheduleArguments& a, std::int64_t blocks,
                                           std::uint64_t seed, std::int64_t in_turn);
/// Nothing: real time.
std::optional<protocol::VirtualWorkers> virtual_cluster(const StradsArguments& a);

}  // namespace stormo::cli
