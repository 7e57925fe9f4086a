#include <stormo/train/reduction/overlap_trial.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <stormo/base/units.h>
#include <stormo/train/world/thread_share.h>

namespace stormo::train {
namespace {

constexpr int kStepsEach = 4;  // the first one pays for the change and does not count
// Few large buckets keep a fast network busy, many small ones begin early and leave little for the
// end: so many of them.
constexpr std::int64_t kBucketCounts[] = {3, 8, 20};
constexpr std::int64_t kSmallestBucket = 64 << 10;
constexpr std::int64_t kLargestBucket = 25 << 20;

// A wire works while cores compute; without one it takes a core that has nothing else to do.
bool may_pay(comm::Communicator& world) {
  if (world.size() == 1) return false;
  const CpuShare mine = current_cpu_share(world.cross_rank());
  const bool spare = mine.usable_cores > std::int64_t{at::get_num_threads()} * world.local_size();
  return world.cross_size() > 1 || spare;
}

}  // namespace

std::string to_string(const Overlap& overlap) {
  if (overlap.kind == Overlap::Kind::kInline) return "at the end of backward";
  if (overlap.kind == Overlap::Kind::kMeasured) return "measured";
  return fmt::format("during backward, {} buckets",
                     format_bytes(static_cast<std::uint64_t>(overlap.bucket_bytes)));
}

std::vector<Overlap> overlaps_to_try(std::int64_t bytes) {
  std::vector<Overlap> out = {Overlap::at_the_end()};
  for (const std::int64_t count : kBucketCounts) {
    const std::int64_t size = std::min(bytes / count, kLargestBucket);
    if (size >= kSmallestBucket) out.push_back(Overlap::buckets(size));
  }
  return out;
}

OverlapTrial::OverlapTrial(comm::Communicator& world, Overlap wanted, std::int64_t bytes) {
  if (wanted.kind != Overlap::Kind::kMeasured) {
    candidates_ = {wanted};
    return;
  }
  candidates_ = {Overlap::at_the_end()};
  double pays = may_pay(world) ? 1 : 0;
  const comm::Buffer vote = std::span(&pays, 1);
  throw_if_error(world.all_reduce(vote, comm::ReduceOp::kMax));
  if (pays == 0) return;
  candidates_ = overlaps_to_try(bytes);
  over_ = candidates_.size() == 1;
  seconds_.assign(candidates_.size(), std::numeric_limits<double>::infinity());
}

Result<bool> OverlapTrial::step_done(comm::Communicator& world) {
  if (over_) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (steps_ > 0) {
    const double took = std::chrono::duration<double>(now - last_).count();
    seconds_[at_] = std::min(seconds_[at_], took);
  }
  last_ = now;
  if (++steps_ < kStepsEach) return false;
  steps_ = 0;
  if (++at_ < candidates_.size()) return true;
  over_ = true;
  STORMO_RETURN_IF_ERROR(world.all_reduce(seconds_, comm::ReduceOp::kMax));
  const auto best = std::min_element(seconds_.begin(), seconds_.end());
  at_ = static_cast<std::size_t>(best - seconds_.begin());
  return true;
}

std::string OverlapTrial::describe() const {
  std::string text = to_string(current());
  if (!over_) return text + " (being measured)";
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    text += fmt::format("{}{:.2f} ms {}", i == 0 ? " (measured: " : ", ", seconds_[i] * 1e3,
                        to_string(candidates_[i]));
  }
  return seconds_.empty() ? text : text + ")";
}

}  // namespace stormo::train
