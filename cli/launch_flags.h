#pragma once

#include <CLI/App.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/launch/host_spec.h>
#include <stormo/launch/job/launcher.h>

namespace stormo::cli {

/// What the user says about where ranks run; the same flags in every command that starts ranks.
struct LaunchFlags {
  std::optional<int> ranks;
  std::string hosts;
  std::string remote_shell = "ssh {host}";
  std::string bind = "auto";
  std::string interface;
  std::string ports;
  std::string heartbeat;  // empty, like the next two: as the environment says
  std::string stall_warning;
  std::string stall_timeout;
  int sockets = 1;
  std::string selection;
  bool checksum = false;

  bool wants_launch() const { return ranks.value_or(1) != 1 || !hosts.empty(); }
  /// Of this host, where that can be said without asking which hosts there are; else 1.
  int ranks_here() const { return hosts.empty() ? ranks.value_or(1) : 1; }
};

void add_launch_flags(CLI::App& command, LaunchFlags& flags);
/// Those of them that say how hosts reach each other.
void add_network_flags(CLI::App& command, LaunchFlags& flags);

/// The flags that variables of the environment can say as well (docs/environment.md), as far as
/// they were given: name and value.
std::vector<std::pair<std::string, std::string>> variables_of(const LaunchFlags& flags);

/// How many of these ranks are on this host.
int ranks_here(const std::vector<launch::HostShare>& shares);

/// The ranks of each host that -n and -H ask for; one on this host, and a note of what is wrong,
/// where they ask for nothing that can be.
std::vector<launch::HostShare> place_of_ranks(const LaunchFlags& flags,
                                              std::vector<std::string>& errors);

/// Appends what is wrong to `errors`, one line each.
launch::LaunchOptions to_launch_options(const LaunchFlags& flags, std::vector<std::string>& errors);

/// Runs the job and returns the exit code. Problems are printed under the name of `command`.
int launch_ranks(const launch::LaunchOptions& options, const char* command);

/// Starts this program, with its own arguments, once per rank of flags that are right; as
/// launch_ranks(). What rank 0 says is the output.
int launch_copies(const LaunchFlags& flags, const char* command);

}  // namespace stormo::cli
