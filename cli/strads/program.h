#pragma once

#include <CLI/App.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/strads/options.h>
#include <stormo/base/status.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/plan/step_plan.h>
#include <stormo/strads/loop.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// Where a program of `stormo strads` runs, or would.
struct StradsJob {
  int workers = 1;        ///< ranks, or workers in virtual time
  int here = 1;           ///< processes of this host
  bool has_files = true;  ///< this process looks at what the run will write
};

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
  /// Joins the job, and has `run` do the rest, whose exit code it returns.
  virtual int join(const transport::Rendezvous& place,
                   const std::function<int(comm::Communicator&)>& run);
  /// A collective: all until the first round, and until the group is left.
  virtual Status begin(comm::Communicator& world) = 0;
  virtual void end() = 0;
  /// Starts ranks; returns the exit code.
  virtual int launch(const Invocation& invocation) const;

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
};

/// Runs a program: launches its ranks, or is one of them, or all workers in virtual time. Prints
/// what run_and_report() prints, and what went wrong, and returns the exit code. What is wrong or
/// different before the first round is refused by all ranks together, and said once on each host.
int run_program(StradsProgram& program, const Invocation& invocation);

/// Runs, and where it `speaks` prints a line for each judgement and a summary. False: it diverged.
Result<bool> run_and_report(StradsProgram& program, bool speaks);

/// Each adds a subcommand.
void add_lasso(CLI::App& strads, Invocation& invocation);
void add_factorise(CLI::App& strads, Invocation& invocation);

}  // namespace stormo::cli
