#pragma once

#include <string>
#include <vector>

#include <cli/bench_child.h>
#include <cli/bench_options.h>

namespace stormo::cli {

/// One system of a comparison: how to start it for one round.
struct Contender {
  std::string name;
  ChildCommand command;
  std::string rendezvous;  ///< a file that must not exist when it starts; empty: none
};

/// Where the contenders run, and what is there.
struct BenchSite {
  std::string program;  ///< this one
  std::string tools;    ///< folder of openmpi_bench, gloo_bench.py and hosts
  std::string scratch;  ///< a folder for files of this run
  std::string path;     ///< PATH
  int ranks = 1;
  int hosts = 1;
  int cores = 1;            ///< of this machine
  bool namespaces = false;  ///< the hosts share this machine's cores
  bool root = false;
  LaunchFlags launch;  ///< with hosts as the launcher takes them
};

/// Whether hosts that are reached so are network namespaces of this machine: `tools/hosts` or plain
/// `ip netns`.
bool enters_namespaces(const std::string& remote_shell);

Contender stormo_contender(const BenchSite& site, const BenchOptions& options,
                           const BenchArguments& arguments);

/// With the flags under which Open MPI is fastest: never two spinning ranks on a core, single
/// copies in memory, the same network interfaces. kInvalidArgument says why it cannot take part.
Result<Contender> openmpi_contender(const BenchSite& site, const BenchOptions& options);

/// Gloo by torch.distributed, over the loopback interface or that of the hosts, with TCP's cubic
/// congestion control where that can be chosen. As above.
Result<Contender> gloo_contender(const BenchSite& site, const BenchOptions& options,
                                 const std::string& python);

/// The Open MPI flags of above, for tests.
std::vector<std::string> openmpi_flags(const BenchSite& site);

}  // namespace stormo::cli
