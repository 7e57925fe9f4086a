#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cli/strads/loop.h>
#include <cli/strads/options.h>
#include <stormo/base/status.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/strads/block_program.h>

namespace stormo::cli {

/// Values of all variables at the end of a run.
struct StradsValues {
  std::vector<double> rows;    ///< that a worker has for its own rows; in the order of workers
  std::vector<double> common;  ///< that every worker has
};

/// A program of `stormo strads` with the whole of its data: what one program does otherwise than
/// another. How all of them run is in run.h.
class StradsProgram {
 public:
  virtual ~StradsProgram() = default;
  /// What is computed, for people: one line without its end.
  virtual std::string heading() const = 0;
  virtual Result<protocol::Scheduler> scheduler(int workers) const = 0;
  /// A worker with its rows.
  virtual Result<std::unique_ptr<strads::BlockProgram>> worker(int worker, int workers) const = 0;
  /// What says that ranks have the same data: hashes, one line each. Cost: all data once.
  virtual std::string facts() const = 0;
  /// Frees the data, once all workers of this process are made.
  virtual void free_data() = 0;
  /// How long it runs.
  virtual StradsLoop loop() const = 0;
  /// Of one worker that this program has made.
  virtual StradsValues values(const strads::BlockProgram& worker) const = 0;
  /// Writes what the user has asked for, if anything.
  virtual Status write(const StradsValues& values) const = 0;
};

/// Read or make the data of arguments that were checked, in one of so many processes of this host.
/// kInvalidArgument for data that are not as they must be, and where memory does not hold what
/// comes of them. The program borrows the arguments.
Result<std::unique_ptr<StradsProgram>> make_program(const LassoArguments& a, int processes);
Result<std::unique_ptr<StradsProgram>> make_program(const FactoriseArguments& a, int processes);

}  // namespace stormo::cli
