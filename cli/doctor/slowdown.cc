#include <cli/doctor/slowdown.h>

#include <sched.h>
#include <time.h>

#include <barrier>
#include <thread>
#include <utility>
#include <vector>

#include <bench/statistics.h>
#include <stormo/launch/process/other_load.h>

namespace stormo::cli {
namespace {

constexpr int kTurns = 5;
constexpr std::size_t kSmall = 4 << 10;  // floats: 16 KiB
constexpr std::size_t kLarge = 8 << 20;  // floats: 32 MiB
constexpr int kPasses = 1500;            // over the small ones, some milliseconds

/// Time in which another process had the core is left out.
double own_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void bind_to(const launch::CpuList& core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : core) CPU_SET(cpu, &set);
  static_cast<void>(::sched_setaffinity(0, sizeof set, &set));  // of this thread
}

class Work {
 public:
  /// Seconds of several passes over a few numbers, and of one over many.
  std::pair<double, double> measure() {
    const double begin = own_seconds();
    for (int pass = 0; pass < kPasses; ++pass) add_to(small_);
    const double middle = own_seconds();
    add_to(large_);
    return {middle - begin, own_seconds() - middle};
  }

 private:
  static void add_to(std::vector<float>& numbers) {
    for (float& x : numbers) x = x * 0.5F + 1.0F;
    asm volatile("" : : "g"(numbers.data()) : "memory");  // it is not left out
  }
  std::vector<float> small_ = std::vector<float>(kSmall);
  std::vector<float> large_ = std::vector<float>(kLarge);
};

}  // namespace

Slowdown measure_slowdown(const launch::Cpus& cpus) {
  const int cores = cpus.usable_cores();
  if (cores < 2) return {};
  const launch::OtherLoad load;
  std::vector<double> computing, moving;
  std::barrier all(cores);
  const auto take_turns = [&](int i) {
    bind_to(cpus.cores[static_cast<std::size_t>(i)]);
    Work work;
    for (int turn = 0; turn < kTurns; ++turn) {
      std::pair<double, double> alone;
      all.arrive_and_wait();
      if (i == 0) alone = work.measure();
      all.arrive_and_wait();
      const auto together = work.measure();
      if (i != 0) continue;
      computing.push_back(together.first / alone.first);
      moving.push_back(together.second / alone.second);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < cores; ++i) threads.emplace_back(take_turns, i);
  for (std::thread& t : threads) t.join();
  return {.computing = bench::median(computing),
          .moving_memory = bench::median(moving),
          .others = load.cores()};
}

}  // namespace stormo::cli
