#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cli/doctor/slowdown.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/cpus.h>

namespace stormo::cli {

/// A soft bound of this process and the hard one it may be raised to; empty: unlimited.
struct Limit {
  std::string name;  ///< as `ulimit` and the manual call it
  std::optional<std::uint64_t> soft;
  std::optional<std::uint64_t> hard;
};

/// What this host offers. A plain value: findings about it are a pure function.
struct HostFacts {
  std::string host;
  std::string kernel;
  std::vector<std::string> host_addresses;  ///< to which the host's own name resolves
  launch::Cpus cpus;
  double load = 0;  ///< runnable processes, last minute
  Slowdown slowdown;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available_bytes = 0;
  std::optional<std::uint64_t> memory_limit_bytes;  ///< of the cgroup
  std::optional<std::uint64_t> pids_limit;          ///< of the cgroup
  std::uint64_t swap_used_bytes = 0;
  std::string hugepages;          ///< transparent, for private memory: "always", "madvise", "never"
  bool shared_hugepages = false;  ///< an Arena gets them
  std::uint64_t hugepages_free = 0;
  std::uint64_t shm_bytes = 0;  ///< size of /dev/shm; 0: there is none
  std::vector<Limit> limits;    ///< nofile, nproc, memlock
  std::vector<launch::InterfaceAddress> interfaces;
  std::string congestion_control;
  bool has_memfd = false;
  bool has_pidfd = false;
  std::string omp_num_threads;  ///< of the environment
  std::string torch_problem;    ///< why what needs libtorch does not start; empty: it does
};

HostFacts read_host_facts();

}  // namespace stormo::cli
