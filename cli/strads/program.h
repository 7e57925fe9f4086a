#pragma once

#include <CLI/App.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/flag_values.h>
#include <cli/simulate/options.h>
#include <cli/train/arguments.h>
#include <stormo/base/status.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/plan/step_plan.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/strads/loop.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// What is said of a number that is wrong: "is not from 1 to 9"; of others nothing.
using Need = std::function<std::string(double)>;
Need from(std::int64_t least, std::int64_t most);
Need above_zero();
inline constexpr std::int64_t kMostNumber = 2147483647;
inline constexpr int kMostVirtualWorkers = 1024;

/// A word that counts for the results, which all ranks must have in common.
struct CountingWord {
  const char* flag;
  std::function<std::string()> value;
  Need need;  ///< of its number; null: none
};
std::string text_of(double value);
inline std::string text_of(bool value) { return value ? "true" : "false"; }
template <class Integer>
std::string text_of(Integer value) {
  return std::to_string(value);
}
template <class Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : "(default)";
}

/// The words that the programs of `stormo strads` have in common.
struct StradsArguments {
  StradsArguments() = default;
  StradsArguments(const StradsArguments&) = delete;  // `counting` borrows the values
  StradsArguments& operator=(const StradsArguments&) = delete;

  LaunchFlags launch;
  std::optional<int> virtual_workers;
  VirtualTimeFlags time{.compute = "1us", .latency = "10us"};
  std::string out;
  bool json = false, dry_run = false;
  protocol::ScheduleOptions schedule;  ///< see schedule_options()
  double threshold = 0.1;
  bool no_priority = false, no_check = false, cyclic = false;
  std::optional<std::int64_t> every;  ///< rounds between judgements
  std::vector<CountingWord> counting;

  bool checks() const { return !no_check && !cyclic; }
  /// Without blocks and rotation.
  protocol::ScheduleOptions schedule_options() const {
    protocol::ScheduleOptions options = schedule;
    options.priority = !no_priority;
    return options;
  }
  template <class Value>
  CLI::Option* add(CLI::App& command, const char* flag, Value& value, const std::string& help,
                   Need need = {}) {
    counting.push_back({flag, [&value] { return text_of(value); }, std::move(need)});
    if constexpr (std::is_same_v<Value, bool>) return command.add_flag(flag, value, help);
    CLI::Option* option = command.add_option(flag, value, help);
    return std::is_arithmetic_v<Value> ? option->capture_default_str() : option;
  }
};
/// `seeded`: what --seed is of.
void add_common(CLI::App& command, StradsArguments& a, const char* seeded);
/// How blocks are chosen. `in_turn`: what --cyclic does; `every`: how many rounds by default.
void add_schedule(CLI::App& command, StradsArguments& a, const char* block, const char* in_turn,
                  const char* every);

struct StradsTrainArguments : StradsArguments {
  TrainArguments train;                ///< recipe, overrides, checkpoint, resume, overwrite
  std::optional<std::int64_t> rounds;  ///< default: steps of the recipe
  std::int64_t units = 1;              ///< see train::BlockTrainingOptions
};
/// Adds the words of `stormo strads train` to `command`; `run` makes its exit code of them.
void add_strads_train_arguments(CLI::App& command, Invocation& invocation,
                                int (*run)(const StradsTrainArguments& a));
/// `stormo strads train`; returns the exit code.
int run_strads_train(const StradsTrainArguments& a);
/// For a process that launches ranks: checks, and prints a CheckedRun. Returns the exit code.
int check_strads_train_run(const StradsTrainArguments& a);

/// Where a program runs, or would.
struct StradsJob {
  int workers = 1;        ///< ranks, or workers in virtual time
  int here = 1;           ///< processes of this host
  bool has_files = true;  ///< this process looks at what the run will write
};
/// The job that the words ask for.
StradsJob job_of(const StradsArguments& a, Wrong& wrong);

/// A program of `stormo strads`, as its words say, and a run of it.
class StradsProgram {
 public:
  using Figures = std::vector<std::pair<std::string, double>>;

  /// Borrows both.
  StradsProgram(const char* its_name, const StradsArguments& a) : name(its_name), words(a) {}
  virtual ~StradsProgram() = default;
  StradsProgram(const StradsProgram&) = delete;
  StradsProgram& operator=(const StradsProgram&) = delete;

  /// Everything that is wrong, one line each. Of files of numbers it looks at the shapes alone.
  virtual void check(const StradsJob& job, Wrong& wrong) = 0;
  /// What all ranks must have in common, of what was checked.
  virtual std::vector<comm::Fact> facts() const;
  /// Of a round of so many workers.
  virtual Result<plan::StepPlan> plan(int workers) = 0;
  /// Joins the job; the group is there until leave().
  virtual Result<comm::Communicator*> join(const transport::Rendezvous& place);
  virtual Status leave();
  /// A collective: all until the first round.
  virtual Status begin(comm::Communicator& world) = 0;

  // After begin().
  virtual strads::RoundsRun& rounds() = 0;
  /// At the end; collectives: a hash of all values, and figures by name, as {"test_loss", 0.1}.
  virtual Result<std::uint64_t> values_hash() = 0;
  virtual Result<Figures> figures() { return Figures(); }
  /// On rank 0, unless the updates diverged: what the user has asked for.
  virtual Status write() { return {}; }
  /// The newest checkpoint; empty: none.
  virtual std::string saved() { return {}; }

  const char* const name;  ///< "lasso"
  const StradsArguments& words;
  std::string heading;  ///< what is computed, for people: one line without its end
  strads::LoopOptions loop;
  strads::LoopEvents events;
  int signal = 0;  ///< that has interrupted the run

 protected:
  /// What is wrong with the words that all programs have; in virtual time sets `simulated`. `rows`:
  /// of the data; 0: not known.
  void check_common(const StradsJob& job, std::int64_t rows, Wrong& wrong);

  std::optional<protocol::VirtualWorkers> simulated;

 private:
  std::unique_ptr<comm::Communicator> world_;
};

/// Runs a program: launches its ranks, or is one of them, or all workers in virtual time. Prints a
/// line for each judgement, a summary, and what went wrong, and returns the exit code. What is
/// wrong or different before the first round is refused by all ranks together, and said once on
/// each host. `may_launch`: not from a program that holds what the launcher of a long job should
/// not.
int run_program(StradsProgram& program, bool may_launch = true);

/// Adds the subcommands lasso and factorise.
void add_numbers_programs(CLI::App& strads, Invocation& invocation);

}  // namespace stormo::cli
