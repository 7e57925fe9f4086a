#include <stormo/launch/process/other_load.h>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace stormo::launch {
namespace {

constexpr std::chrono::milliseconds kLook(200);

/// "cpu3" is 3; -1 for other lines.
int processor_of(const std::string& name) {
  int out = -1;
  if (name.starts_with("cpu")) std::from_chars(name.data() + 3, name.data() + name.size(), out);
  return out;
}

/// Seconds that the processors of this process have been busy.
double busy_seconds() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  static_cast<void>(::sched_getaffinity(0, sizeof mine, &mine));
  std::ifstream file("/proc/stat");
  double ticks = 0;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream in(line);
    std::string name;
    in >> name;
    const int cpu = processor_of(name);
    if (cpu < 0 || !CPU_ISSET(cpu, &mine)) continue;
    double value = 0;
    for (int field = 0; field < 8 && in >> value; ++field)
      if (field != 3 && field != 4) ticks += value;  // idle, waiting for a disk
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_seconds() {
  std::array<struct rusage, 2> both{};
  ::getrusage(RUSAGE_SELF, &both[0]);
  ::getrusage(RUSAGE_CHILDREN, &both[1]);
  double seconds = 0;
  for (const struct rusage& u : both)
    for (const timeval& t : {u.ru_utime, u.ru_stime})
      seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  return seconds;
}

}  // namespace

OtherLoad::OtherLoad()
    : busy_(busy_seconds()), own_(own_seconds()), begun_(std::chrono::steady_clock::now()) {}

double OtherLoad::cores() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begun_;
  if (elapsed.count() <= 0) return 0;
  return std::max(0.0, (busy_seconds() - busy_ - (own_seconds() - own_)) / elapsed.count());
}

LoadedThreads threads_beside_others(const Cpus& cpus, int local_ranks) {
  const int usual = threads_per_rank(cpus, local_ranks);
  if (usual == 1) return {};
  const OtherLoad load;
  std::this_thread::sleep_for(kLook);
  const double others = load.cores();
  LoadedThreads out{.threads = threads_per_rank(cpus, local_ranks, others), .note = {}};
  if (out.threads == usual) return out;
  out.note = fmt::format(
      "other programs use {:.1f} of {} cores: {} {} per rank instead of {}, as more would wait for "
      "each other; STORMO_THREADS={} has them all (the last digits of results depend on it)",
      others, cpus.cores.size(), out.threads, out.threads == 1 ? "thread" : "threads", usual,
      usual);
  return out;
}

}  // namespace stormo::launch
