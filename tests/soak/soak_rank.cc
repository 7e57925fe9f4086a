// A rank of a soak that is a process:
//   soak_rank RANK HOSTS STORE SEED SECONDS MAX_COUNT
// HOSTS: ranks per host, "2,2". The job's secret is in STORMO_TEST_SECRET. Exit code 1 when an
// outcome was wrong, or memory or descriptors grew in the second half.
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/soak/era.h"

namespace stormo::soak {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

struct Footprint {
  long kilobytes = 0;  // of private memory
  int descriptors = 0;
};

Footprint footprint() {
  ::malloc_trim(0);  // freed memory is no growth
  Footprint f;
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    if (word == "RssAnon:") in >> f.kilobytes;
  }
  f.descriptors = open_descriptors();
  return f;
}

int complain(const std::string& wrong) {
  std::printf("%s\n", wrong.c_str());
  return 1;
}

enum Phase : std::int64_t { kFirstHalf, kSecondHalf, kOver };

/// Rank 0's clock counts for all. Each half has an era at least.
Result<Phase> agree_on_phase(Communicator& world, Phase last, std::uint64_t era, TimePoint start,
                             Duration duration) {
  const Duration passed = std::chrono::steady_clock::now() - start;
  std::int64_t phase = last;
  if (last == kFirstHalf && era > 0 && passed > duration / 2) phase = kSecondHalf;
  if (last == kSecondHalf && passed > duration) phase = kOver;
  STORMO_RETURN_IF_ERROR(
      world.broadcast(comm::Buffer{&phase, 1, DType::kInt64}, 0, Deadline::after(60s)));
  return static_cast<Phase>(phase);
}

int run(Communicator& world, std::uint64_t seed, std::chrono::seconds duration,
        std::int64_t max_count) {
  if (std::string wrong = run_greatest(world, seed, max_count); !wrong.empty()) {
    return complain(wrong);
  }
  const TimePoint start = std::chrono::steady_clock::now();
  Footprint warm;
  Phase phase = kFirstHalf;
  std::uint64_t era = 0;
  for (;; ++era) {
    const auto agreed = agree_on_phase(world, phase, era, start, duration);
    if (!agreed.ok()) return complain(agreed.status().to_string());
    if (*agreed == kOver) break;
    if (phase == kFirstHalf && *agreed == kSecondHalf) warm = footprint();
    phase = *agreed;
    if (std::string wrong = run_era(world, seed, era, max_count); !wrong.empty()) {
      return complain(wrong + "\nera " + std::to_string(era));
    }
  }
  const Footprint end = footprint();
  std::printf("process %d of %d: %llu operations, %ld to %ld kB, %d descriptors\n", world.rank(),
              world.size(), static_cast<unsigned long long>(era * kOperationsPerEra),
              warm.kilobytes, end.kilobytes, end.descriptors);
  if (end.descriptors > warm.descriptors) return complain("descriptors grew");
  if (end.kilobytes > warm.kilobytes + kMaxGrowthKilobytes) return complain("memory grew");
  const Status left = world.finalize(Deadline::after(60s));
  return left.ok() ? 0 : complain(left.to_string());
}

}  // namespace
}  // namespace stormo::soak

int main(int argc, char** argv) {
  using namespace stormo;
  if (argc != 7) return 2;
  std::vector<int> hosts;
  std::istringstream list(argv[2]);
  for (std::string n; std::getline(list, n, ',');) hosts.push_back(std::stoi(n));
  const char* const hex = std::getenv("STORMO_TEST_SECRET");
  const auto secret = transport::Secret::from_hex(hex != nullptr ? hex : "");
  if (!secret.ok()) return 2;
  const auto all = soak::places(hosts, {argv[3]}, *secret);
  auto world = comm::join(all.at(static_cast<std::size_t>(std::stoi(argv[1]))));
  if (!world.ok()) return soak::complain(world.status().to_string());
  return soak::run(**world, std::stoull(argv[4]), std::chrono::seconds(std::stoi(argv[5])),
                   std::stoll(argv[6]));
}
