#include <cli/doctor/facts.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <stormo/base/file.h>
#include <stormo/launch/process/control_groups.h>
#include <stormo/launch/process/spawn.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {
namespace {

/// "MemTotal:  16384 kB" of /proc/meminfo, in bytes (or pages, where it has no unit).
std::uint64_t meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream words(line.substr(name.size() + 1));
    std::uint64_t number = 0;
    std::string unit;
    words >> number >> unit;
    return unit == "kB" ? number * 1024 : number;
  }
  return 0;
}

/// The chosen one of "always [advise] never".
std::string bracketed(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']', open);
  return close == std::string::npos ? "unknown" : line.substr(open + 1, close - open - 1);
}

Limit read_limit(const char* name, __rlimit_resource_t resource) {
  struct rlimit r {};
  ::getrlimit(resource, &r);
  const auto bound = [](rlim_t v) {
    return v == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(v);
  };
  return {name, bound(r.rlim_cur), bound(r.rlim_max)};
}

bool works(int descriptor) {
  if (descriptor < 0) return false;
  ::close(descriptor);
  return true;
}

void read_memory(HostFacts& facts) {
  facts.memory_bytes = meminfo("MemTotal");
  facts.memory_available_bytes = meminfo("MemAvailable");
  facts.swap_used_bytes = meminfo("SwapTotal") - meminfo("SwapFree");
  facts.hugepages_free = meminfo("HugePages_Free");
  facts.memory_limit_bytes =
      launch::control_group_limit("memory", "memory.max", "memory.limit_in_bytes");
  const std::filesystem::path pages = "/sys/kernel/mm/transparent_hugepage";
  facts.hugepages = bracketed(first_line(pages / "enabled"));
  const std::uint64_t page = transport::MemoryFile::kHugePage;
  const auto file = transport::MemoryFile::create("stormo-doctor", page);
  facts.shared_hugepages = file.ok() && file->back_with_huge_pages(0, page);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    facts.shm_bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize;
}

void read_network(HostFacts& facts) {
  const auto addresses = transport::resolve({facts.host, 0});
  if (addresses.ok()) {
    for (const transport::SocketAddress& a : *addresses) {
      const auto parsed = transport::parse_host_port(a.to_string());
      if (parsed.ok()) facts.host_addresses.push_back(parsed->host);
    }
  }
  facts.interfaces = launch::interface_addresses();
  facts.congestion_control = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  struct utsname system {};
  ::uname(&system);
  facts.host = system.nodename;
  facts.kernel = std::string(system.sysname) + " " + system.release;
  facts.cpus = launch::read_cpus();
  std::istringstream(first_line("/proc/loadavg")) >> facts.load;
  facts.slowdown = measure_slowdown(facts.cpus);
  read_memory(facts);
  facts.pids_limit = launch::control_group_limit("pids", "pids.max", "pids.max");
  facts.limits = {read_limit("nofile", RLIMIT_NOFILE), read_limit("nproc", RLIMIT_NPROC),
                  read_limit("memlock", RLIMIT_MEMLOCK)};
  read_network(facts);
  facts.has_memfd = works(::memfd_create("stormo-doctor", MFD_CLOEXEC));
  facts.has_pidfd = launch::open_process(::getpid()).ok();
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) facts.omp_num_threads = threads;
  return facts;
}

}  // namespace stormo::cli
