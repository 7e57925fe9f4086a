// The opponent of `stormo bench all_reduce`: MPI_Allreduce in place, measured in the same way.
//   mpirun -n 2 openmpi_all_reduce SECONDS_PER_SIZE BYTES...
// Prints one JSON object per size. The two programs must stay alike: cli/bench_all_reduce.cc.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kMinIterations = 10;

struct World {
  int rank = 0;
  int size = 1;
};

/// Small integers: their sums are exact, whatever the order.
void rewrite(std::vector<float>& data, int rank, int iteration) {
  const float base = static_cast<float>(rank + iteration % 7);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = base + static_cast<float>(i % 16);
}

bool holds_sum(const std::vector<float>& data, int ranks, int iteration) {
  const float base = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (iteration % 7));
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] != base + static_cast<float>(ranks) * static_cast<float>(i % 16)) return false;
  }
  return true;
}

// Errors abort the program: MPI's default.
void largest_of_all(std::vector<double>& values) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
}

/// One timed iteration; the input is fresh, the ranks start together.
double iterate(const World& world, std::vector<float>& data, int iteration) {
  rewrite(data, world.rank, iteration);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool verify(const World& world, std::vector<float>& data, int iteration) {
  iterate(world, data, iteration);
  std::vector<double> wrong = {holds_sum(data, world.size, iteration) ? 0.0 : 1.0};
  largest_of_all(wrong);
  return wrong.front() == 0;
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1))];
}

bool measure(const World& world, std::size_t bytes, double seconds) {
  std::vector<float> data(bytes / sizeof(float));
  bool right = verify(world, data, 1);

  // the first timings decide, on all ranks alike, how many iterations fit
  std::vector<double> warm(1);
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    iterate(world, data, i);
    warm[0] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  largest_of_all(warm);
  const double wanted = std::clamp(seconds / std::max(warm[0], 1e-7), 1.0, 20000.0);
  const int iterations = std::max(kMinIterations, static_cast<int>(wanted));

  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) times.push_back(iterate(world, data, i));
  largest_of_all(times);
  right = verify(world, data, 2) && right;

  std::sort(times.begin(), times.end());
  if (world.rank == 0) {
    std::printf(
        "{\"op\":\"all_reduce\",\"ranks\":%d,\"bytes\":%zu,\"dtype\":\"float32\","
        "\"p50_s\":%.9g,\"p90_s\":%.9g,\"verified\":%s,\"iterations\":%d}\n",
        world.size, bytes, percentile(times, 0.5), percentile(times, 0.9), right ? "true" : "false",
        iterations);
    std::fflush(stdout);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  bool right = argc > 2;
  if (!right && world.rank == 0) {
    std::fputs("usage: openmpi_all_reduce SECONDS_PER_SIZE BYTES...\n", stderr);
  }
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 0;
  for (int i = 2; i < argc; ++i) {
    right = measure(world, std::strtoull(argv[i], nullptr, 10), seconds) && right;
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
