#pragma once

#include <CLI/App.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <cli/flag_values.h>
#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/protocol/strads/virtual_rounds.h>

namespace stormo::cli {

/// The words of virtual time.
struct VirtualTimeFlags {
  std::string compute = "10ms";
  double jitter = 0.1;
  std::string latency = "100us";
  std::vector<std::string> stragglers = {};  ///< "2:10x"
};
/// The options of all but the stragglers, with what is said of two of them.
std::array<CLI::Option*, 3> add_virtual_time(CLI::App& command, VirtualTimeFlags& flags,
                                             const char* compute, const char* latency);
CLI::Option* add_stragglers(CLI::App& command, VirtualTimeFlags& flags);
/// What they mean for so many workers; 0: not known. "2:10x" makes the last two 10 times as slow,
/// further texts the workers before them. Wrong are times over protocol::kMostVirtualTime.
protocol::VirtualWorkers read_virtual_time(const VirtualTimeFlags& flags, int workers,
                                           Wrong& wrong);

/// The words of `stormo simulate`.
struct SimulateArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  int workers = 8;
  std::vector<std::string> policies;  ///< names, or "all"; none: as the recipe says
  VirtualTimeFlags time;
  std::string times;  ///< folder of a record; empty: none
  bool pooled = false;
  std::vector<std::string> crashes;  ///< "3:250ms"
  double loss = 0;
  std::string timeout = "100ms";
  std::vector<std::string> server_crashes;  ///< "1:250ms"
  bool server_backups = false;
  std::uint64_t seed = 1;
  bool json = false;
  bool svg = false;
};

/// What they mean.
struct SimulateOptions {
  protocol::VirtualCluster cluster;   ///< without the number of steps; 0 workers: not known
  std::vector<std::string> policies;  ///< names; none: as the recipe says
};

/// Adds everything that is wrong to `wrong`, one line each.
SimulateOptions to_simulate_options(const SimulateArguments& a, Wrong& wrong);

/// async with fetch_every or push_every above 1. Not among simulated_policies().
inline constexpr const char* kDownpour = "downpour";
inline constexpr const char* kParameterAveraging = "parameter_averaging";
inline constexpr const char* kElasticAveraging = "elastic_averaging";
/// What "all" stands for: the policies of servers that have no coordinator, and the strategies that
/// average.
std::vector<std::string> simulated_policies();

/// The command; returns the exit code. It needs libtorch.
int run_simulate(const SimulateArguments& a);

}  // namespace stormo::cli
