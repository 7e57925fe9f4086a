#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::launch {

/// Looks one variable up; the value is empty when it is not set. Injected, so that tests need no
/// environment.
using EnvironmentReader = std::function<std::optional<std::string>(std::string_view name)>;

/// Reads this process's environment at the time of each call.
EnvironmentReader process_environment();

/// How this process finds its job. The first launcher whose variables are complete wins: Stormo's
/// own, torchrun, a Slurm step, Open MPI, MPICH; else a world of one. docs/environment.md has the
/// table. Everything wrong is listed at once (kInvalidArgument). Call it once per process: a
/// descriptor that holds the job's secret is read and closed.
Result<transport::Rendezvous> read_environment(const EnvironmentReader& read);

/// STORMO_THREADS: how many threads libtorch shall use in each rank; 0 when unset, for "share the
/// cores". kInvalidArgument unless it is a number from 1 to `most`.
Result<int> threads_per_rank(const EnvironmentReader& read, int most);

/// Number of tasks on each node of a Slurm step: "2(x2),1" is 2, 2, 1. Empty when malformed.
std::vector<int> expand_tasks_per_node(std::string_view text);

/// "5000-5010" or "5000"; 1 .. 65535.
Result<transport::PortRange> parse_port_range(std::string_view text);

/// Whether a variable places a process in a job of some launcher. Such variables of an outer job
/// are not handed to the ranks of an inner one, where they would be misread.
bool places_a_rank(std::string_view name);

/// Largest job that is started or joined.
inline constexpr int kMaxRanks = 4096;

}  // namespace stormo::launch
