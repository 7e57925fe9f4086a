#pragma once

#include <cli/strads/program.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// Runs all workers of a program in this process, in virtual time, and writes its values. False:
/// the updates diverged.
Result<bool> simulate(const StradsArguments& a, StradsProgram& program);

/// The same with the ranks of `world` as workers, of which this process is one.
Result<bool> run_as_rank(comm::Communicator& world, const StradsArguments& a,
                         StradsProgram& program);

}  // namespace stormo::cli
