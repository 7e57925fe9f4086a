#include <cli/bench_all_reduce.h>

#include <algorithm>
#include <chrono>
#include <span>

namespace stormo::cli {
namespace {

using Seconds = std::chrono::duration<double>;

/// The elements under test, in the Arena or in ordinary memory.
class Input {
 public:
  Input(comm::Communicator& world, std::uint64_t bytes, bool in_private)
      : arena_(world.arena()), count_(bytes / sizeof(float)) {
    if (in_private) {
      private_.resize(count_);
      data_ = private_.data();
    } else {
      data_ = static_cast<float*>(arena_.allocate(std::max<std::size_t>(bytes, 1)));
    }
  }
  ~Input() {
    if (private_.empty()) arena_.deallocate(data_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  bool valid() const { return data_ != nullptr || count_ == 0; }
  std::span<float> span() { return {data_, count_}; }
  /// Small integers: their sums are exact, whatever the order.
  void rewrite(int rank, int iteration) {
    const float base = static_cast<float>(rank + iteration % 7);
    for (std::size_t i = 0; i < count_; ++i) data_[i] = base + static_cast<float>(i % 16);
  }
  bool holds_sum(int ranks, int iteration) const {
    const float base = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (iteration % 7));
    for (std::size_t i = 0; i < count_; ++i) {
      if (data_[i] != base + static_cast<float>(ranks) * static_cast<float>(i % 16)) return false;
    }
    return true;
  }

 private:
  transport::Arena& arena_;
  std::size_t count_;
  std::vector<float> private_;
  float* data_ = nullptr;
};

double percentile(std::vector<double> sorted, double p) {
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1))];
}

/// One timed iteration; the input is fresh, the ranks start together.
Result<double> iterate(comm::Communicator& world, Input& input, int iteration) {
  input.rewrite(world.rank(), iteration);
  STORMO_RETURN_IF_ERROR(world.barrier());
  const auto start = std::chrono::steady_clock::now();
  STORMO_RETURN_IF_ERROR(world.all_reduce(comm::buffer_of(input.span()), comm::ReduceOp::kSum));
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

Result<bool> verify(comm::Communicator& world, Input& input, int iteration) {
  STORMO_RETURN_IF_ERROR(iterate(world, input, iteration).status());
  double wrong = input.holds_sum(world.size(), iteration) ? 0 : 1;
  STORMO_RETURN_IF_ERROR(
      world.all_reduce(comm::buffer_of(std::span(&wrong, 1)), comm::ReduceOp::kMax));
  return wrong == 0;
}

}  // namespace

Result<BenchResult> bench_all_reduce(comm::Communicator& world, std::uint64_t bytes,
                                     const BenchOptions& options) {
  Input input(world, bytes, options.private_buffers);
  if (!input.valid()) return Status(Code::kExhausted, "no room in the arena for the buffer");
  BenchResult result{.bytes = bytes};
  STORMO_ASSIGN_OR_RETURN(bool right, verify(world, input, 1));

  // the first timings decide, on all ranks alike, how many iterations fit
  double warm = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    STORMO_RETURN_IF_ERROR(iterate(world, input, i).status());
    warm = Seconds(std::chrono::steady_clock::now() - start).count();
  }
  STORMO_RETURN_IF_ERROR(
      world.all_reduce(comm::buffer_of(std::span(&warm, 1)), comm::ReduceOp::kMax));
  const double wanted = std::clamp(options.seconds_per_size / std::max(warm, 1e-7), 1.0, 20000.0);
  result.iterations = std::max(options.min_iterations, static_cast<int>(wanted));

  std::vector<double> times;
  for (int i = 0; i < result.iterations; ++i) {
    STORMO_ASSIGN_OR_RETURN(const double t, iterate(world, input, i));
    times.push_back(t);
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(comm::buffer_of(std::span(times)), comm::ReduceOp::kMax));
  STORMO_ASSIGN_OR_RETURN(const bool still_right, verify(world, input, 2));

  const double n = world.size();
  result.verified = right && still_right;
  result.p50_s = percentile(times, 0.5);
  result.p90_s = percentile(times, 0.9);
  result.algbw = static_cast<double>(bytes) / std::max(result.p50_s, 1e-9);
  result.busbw = result.algbw * 2 * (n - 1) / n;
  return result;
}

}  // namespace stormo::cli
