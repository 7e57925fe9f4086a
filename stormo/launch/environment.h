#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::launch {

/// Returns the value of a variable; empty when it is not set. Passed as an argument, so that tests
/// need no environment.
using EnvironmentReader = std::function<std::optional<std::string>(std::string_view name)>;

/// Reads this process's environment at the time of each call.
EnvironmentReader process_environment();

/// All variables of this process, "NAME=value".
std::vector<std::string> own_environment();

/// Reads from the environment how this process finds its job. The first launcher whose variables
/// are all set is used: Stormo's own, torchrun, a Slurm step, Open MPI, MPICH; else the workers of
/// TF_CONFIG, if it names no parameter servers; else a world of one rank. docs/environment.md has
/// the table. kInvalidArgument lists all errors. Call it once per process, because it reads the
/// job's secret from a descriptor and closes it.
Result<transport::Rendezvous> read_environment(const EnvironmentReader& read);

/// Most threads of a rank.
inline constexpr int kMostThreads = 1024;
/// What a person may set for a job (STORMO_INTERFACE, STORMO_RENDEZVOUS, ...), for ranks that find
/// their job without a launcher's variables. What is not set is as in JobSettings, but for the
/// host and its folders: see also only_interface(). kInvalidArgument lists all errors.
Result<transport::JobSettings> read_settings(const EnvironmentReader& read);

/// STORMO_THREADS, else OMP_NUM_THREADS: number of libtorch's threads in each rank; 0 when unset:
/// divide the cores among the ranks. kInvalidArgument if STORMO_THREADS is no number from 1 to
/// `most`.
Result<int> threads_per_rank(const EnvironmentReader& read, int most = kMostThreads);

/// Number of tasks on each node of a Slurm step: "2(x2),1" is 2, 2, 1. Empty when malformed.
std::vector<int> expand_tasks_per_node(std::string_view text);

/// "5000-5010" or "5000"; 1 .. 65535.
Result<transport::PortRange> parse_port_range(std::string_view text);

/// Whether a variable assigns a process to a job of some launcher. Such variables of an outer job
/// are not passed to the ranks of an inner job.
bool places_a_rank(std::string_view name);

/// The variables by which read_environment() recognises a launcher, for messages; `source` as in
/// Rendezvous. Empty for "none".
std::string placing_variables(std::string_view source);

/// Largest number of ranks of a job.
inline constexpr int kMaxRanks = 4096;

}  // namespace stormo::launch
