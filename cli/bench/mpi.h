#pragma once

#include <string>
#include <vector>

#include <cli/bench/contenders.h>

namespace stormo::cli {

/// An MPI that bench/opponents.cmake can build mpi_bench.cc with.
struct MpiOpponent {
  const char* name;     ///< of the contender; its program is NAME_bench, beside this one
  const char* install;  ///< what to do when that is missing
};
const MpiOpponent* find_mpi_opponent(const std::string& name);

/// With the flags under which this MPI is fastest: never two spinning ranks on a core where it can
/// be told so, single copies in memory, the same network interfaces. kInvalidArgument says why it
/// cannot take part: not built, no such type, or (MPICH, Intel MPI) ranks on several hosts.
Result<Contender> mpi_contender(const MpiOpponent& opponent, const BenchSite& site,
                                const BenchOptions& options);

/// The flags of Open MPI's launcher, for tests.
std::vector<std::string> openmpi_flags(const BenchSite& site);

}  // namespace stormo::cli
