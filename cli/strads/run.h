#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cli/strads/program.h>
#include <stormo/base/status.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// How a program comes to be, from arguments that were checked.
struct StradsMaker {
  const char* name;     ///< "lasso", for messages
  std::string options;  ///< what must be equal on all ranks, one line each
  /// Whether the memory of this host is enough for so many processes.
  std::function<Status(int processes)> check_memory;
  /// Reads or makes the data, in one of so many processes of this host.
  std::function<Result<std::unique_ptr<StradsProgram>>(int processes)> make;
};

// Both run a program, print what run_strads_loop() prints, and what went wrong, write the values
// unless the updates diverged, and return the exit code.

/// All workers in this process, in virtual time.
int run_virtual(const StradsArguments& a, const StradsMaker& maker);
/// This process is a rank, that is, a worker. What is wrong or different before the first round is
/// refused by all ranks together, and said once on each host.
int run_as_rank(const transport::Rendezvous& place, const StradsArguments& a,
                const StradsMaker& maker);

/// Prints a failure and returns its exit code.
int fail_strads(const char* name, const Status& status);

}  // namespace stormo::cli
