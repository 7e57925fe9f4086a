#include <cli/doctor/findings.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

constexpr std::uint64_t kFewFiles = 4096;
constexpr std::uint64_t kFewProcesses = 512;
constexpr std::uint64_t kLittleMemory = 1ull << 30;
constexpr double kSlowedComputing = 1.25;
constexpr double kBusyCores = 0.25;

void check_kernel(const HostFacts& f, std::vector<Finding>& out) {
  if (!f.has_memfd)
    out.push_back({true, "memory files do not work (memfd_create)",
                   "ranks of a host share tensors through them",
                   "allow memfd_create in the container's seccomp profile"});
  if (!f.has_pidfd)
    out.push_back({true, "process descriptors do not work (pidfd_open)",
                   "the launcher learns by them that a rank has ended",
                   "use Linux 5.3 or newer, or allow pidfd_open in the seccomp profile"});
}

void check_cpus(const HostFacts& f, std::vector<Finding>& out) {
  const int cores = f.cpus.usable_cores();
  const int in_mask = static_cast<int>(f.cpus.cores.size());
  if (cores < in_mask)
    out.push_back({false,
                   fmt::format("the cgroup allows {:.1f} of {} cores", f.cpus.quota, in_mask),
                   "a rank beyond the quota stops for the rest of each period, and all wait for it",
                   fmt::format("start at most {} ranks here, or raise the quota", cores)});
  if (cores == 1)
    out.push_back(
        {false, "one core", "ranks take turns: two are slower than one", "use one rank per core"});
  if (f.load > cores)
    out.push_back({false, fmt::format("load {:.1f} on {} cores", f.load, cores),
                   "other processes take the cores, and every rank waits for the slowest",
                   "stop them, or bind the job elsewhere"});
  if (f.slowdown.computing > kSlowedComputing)
    out.push_back({false,
                   fmt::format("cores slow each other: computing takes {:.1f} times as long",
                               f.slowdown.computing),
                   "they are halves of real cores, or share their power: ranks here gain less than "
                   "their number says. 'stormo plan' measures with all ranks at once",
                   "compare -n 1 with -n 2 by 'stormo plan search'"});
  if (f.load <= cores && f.slowdown.others > kBusyCores)
    out.push_back({false, fmt::format("other processes keep {:.1f} cores busy", f.slowdown.others),
                   "every rank waits for the slowest", "stop them, or bind the job elsewhere"});
  if (!f.omp_num_threads.empty())
    out.push_back({false, fmt::format("OMP_NUM_THREADS={} is set", f.omp_num_threads),
                   "it overrides the share of cores that each rank would use",
                   "unset OMP_NUM_THREADS, unless it is meant"});
}

void check_memory(const HostFacts& f, std::vector<Finding>& out) {
  const std::uint64_t usable =
      std::min(f.memory_available_bytes, f.memory_limit_bytes.value_or(f.memory_available_bytes));
  if (usable < kLittleMemory)
    out.push_back({false, fmt::format("{} of memory available", format_bytes(usable)),
                   "when it runs out the kernel kills a rank (signal 9)",
                   "free memory, or start fewer ranks"});
  if (f.swap_used_bytes > kLittleMemory)
    out.push_back({false, fmt::format("{} swapped out", format_bytes(f.swap_used_bytes)),
                   "a rank that waits for the disk holds up all others", "free memory"});
  if (!f.shared_hugepages)
    out.push_back({false, "no huge pages for shared memory",
                   "large tensors cost more page faults and address look-ups",
                   "use Linux 6.1 or newer, and do not forbid huge pages (prctl, cgroup)"});
  if (!f.hugepages.empty() && f.hugepages != "always")
    out.push_back({false, fmt::format("transparent huge pages are '{}'", f.hugepages),
                   "random access to much memory misses the address cache: compilers and large "
                   "models may run several times slower, most of all in virtual machines",
                   "echo always > /sys/kernel/mm/transparent_hugepage/enabled (as root)"});
  if (f.shm_bytes > 0 && f.shm_bytes < (128ull << 20))
    out.push_back({false, fmt::format("/dev/shm holds {}", format_bytes(f.shm_bytes)),
                   "Stormo does not use it, but data loaders of other programs do",
                   "start the container with a larger --shm-size"});
}

void check_limits(const HostFacts& f, std::vector<Finding>& out) {
  const auto low = [&](const char* name, std::uint64_t least, const char* why) {
    const auto limit = std::find_if(f.limits.begin(), f.limits.end(),
                                    [&](const Limit& l) { return l.name == name; });
    if (limit == f.limits.end() || !limit->soft || *limit->soft >= least) return;
    out.push_back({false, fmt::format("limit {} is {}", name, *limit->soft), why,
                   fmt::format("ulimit -S {} {}", name == std::string_view("nofile") ? "-n" : "-u",
                               std::min(least, limit->hard.value_or(least)))});
  };
  low("nofile", kFewFiles, "each rank needs descriptors for its peers, files and output");
  low("nproc", kFewProcesses, "ranks and their threads count against it");
  if (f.pids_limit && *f.pids_limit < kFewProcesses)
    out.push_back({false, fmt::format("the cgroup allows {} processes", *f.pids_limit),
                   "ranks and their threads count against it", "raise the container's pids limit"});
}

void check_network(const HostFacts& f, std::vector<Finding>& out) {
  const bool all_loopback =
      !f.host_addresses.empty() &&
      std::all_of(f.host_addresses.begin(), f.host_addresses.end(), launch::is_loopback);
  if (all_loopback)
    out.push_back(
        {false,
         fmt::format("the host's name '{}' resolves to {}", f.host, f.host_addresses.front()),
         "programs that publish this name cannot be reached from other hosts; Stormo "
         "takes the address of the route instead",
         "nothing to do for Stormo; else give the name its real address in /etc/hosts"});
  const bool reachable = std::any_of(f.interfaces.begin(), f.interfaces.end(),
                                     [](const auto& i) { return !i.loopback; });
  if (!reachable)
    out.push_back({false, "no network interface but loopback", "jobs on several hosts cannot start",
                   "bring an interface up; jobs on this host need none"});
}

void check_torch(const HostFacts& f, std::vector<Finding>& out) {
  if (f.torch_problem.empty()) return;
  out.push_back({true, "what needs libtorch does not start: " + f.torch_problem,
                 "train, evaluate, predict, sample and 'bench step' run in a program of their own",
                 "do as it says; build or install all of Stormo again if that does not help"});
}

}  // namespace

std::vector<Finding> findings(const HostFacts& facts) {
  std::vector<Finding> out;
  check_kernel(facts, out);
  check_cpus(facts, out);
  check_memory(facts, out);
  check_limits(facts, out);
  check_network(facts, out);
  check_torch(facts, out);
  return out;
}

}  // namespace stormo::cli
