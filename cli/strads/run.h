#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/strads/options.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/strads/loop.h>

namespace stormo::cli {

/// A program of `stormo strads` with the whole of its data.
struct StradsProgram {
  std::string heading;  ///< what is computed, for people: one line without its end
  protocol::ScheduleOptions schedule;
  std::shared_ptr<const protocol::Conflicts> conflicts;
  strads::LoopOptions loop;
  /// A worker with its rows.
  strads::Workers::MakeWorker worker;
  /// What says that ranks have the same data: hashes. Cost: all data once.
  std::function<std::vector<comm::Fact>()> facts;
  /// Writes what the user has asked for.
  std::function<Status(const strads::BlockValues& values)> write;
};

/// How a program comes to be.
struct StradsMaker {
  const char* name;  ///< "lasso", for messages
  /// Adds what is wrong with its words, one line each. Of files it looks at the shapes alone.
  std::function<void(std::vector<std::string>& wrong)> check;
  /// Whether the memory of this host is enough for so many processes; before data are read or made.
  std::function<Status(int processes)> check_memory;
  /// Reads or makes the data, in one of so many processes of this host. kInvalidArgument for data
  /// that are not as they must be, and where memory does not hold what comes of them.
  std::function<Result<StradsProgram>(int processes)> make;
};

/// Runs a program: launches its ranks, or is one of them, or all workers in virtual time. Prints
/// what run_and_report() prints, and what went wrong, writes the values unless the updates
/// diverged, and returns the exit code. What is wrong or different before the first round is
/// refused by all ranks together, and said once on each host.
int run_program(const StradsArguments& a, const StradsMaker& maker, const Invocation& invocation);

/// Prints the plan that --dry-run asks for: as text, or as a JSON event.
void print_round_plan(const plan::StepPlan& plan, bool json);

using StradsFigures = std::vector<std::pair<std::string, double>>;
/// What a report says at the end; collectives.
struct StradsEnd {
  std::function<Result<std::uint64_t>()> values_hash;
  /// By name, such as {"test_loss", 0.1}.
  std::function<Result<StradsFigures>()> figures = [] { return StradsFigures(); };
};

/// Runs, and where it `speaks` prints a line for each judgement and a summary. False: it diverged.
Result<bool> run_and_report(strads::RoundsRun& run, const strads::LoopOptions& loop,
                            strads::LoopEvents events, const StradsEnd& end, bool json,
                            bool speaks);

/// Each adds a subcommand.
void add_lasso(CLI::App& strads, Invocation& invocation);
void add_factorise(CLI::App& strads, Invocation& invocation);

}  // namespace stormo::cli
