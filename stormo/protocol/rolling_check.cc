#include <stormo/protocol/rolling_check.h>

#include <algorithm>
#include <cmath>

namespace stormo::protocol {
namespace {

// A hash travels in pieces whose squares, summed over all ranks, are exact in a double.
constexpr std::size_t kPieces = kHashNumbers / 2;
constexpr int kPieceBits = 16;

// Until a pass has been measured.
constexpr std::int64_t kFirstSteps = 100;
constexpr double kMostSteps = 1e6;

}  // namespace

void put_hash(std::uint64_t hash, HashNumbers numbers) {
  for (std::size_t i = 0; i < kPieces; ++i) {
    const auto piece = static_cast<double>((hash >> (kPieceBits * i)) & ((1u << kPieceBits) - 1));
    numbers[i] = piece;
    numbers[kPieces + i] = piece * piece;
  }
}

// The mean of squares is the square of the mean just where all are equal.
bool are_equal(HashSums sums, int ranks) {
  for (std::size_t i = 0; i < kPieces; ++i) {
    const double mean = std::floor(sums[i] / ranks);
    if (mean * ranks != sums[i] || mean * mean * ranks != sums[kPieces + i]) return false;
  }
  return true;
}

RollingCheck::RollingCheck(std::int64_t steps)
    : automatic_(steps == kAutomatic), steps_(automatic_ ? kFirstSteps : steps) {}

RollingCheck::Slice RollingCheck::slice(std::size_t pieces) const {
  const auto cut = [&](std::int64_t slices) {
    return pieces * static_cast<std::size_t>(slices) / static_cast<std::size_t>(steps_);
  };
  return {cut(at_), cut(at_ + 1)};
}

void RollingCheck::note(double look_s, double step_s) {
  looks_s_ += look_s;
  if (step_s > 0) step_s_ = step_s_ == 0 ? step_s : std::min(step_s_, step_s);
}

double RollingCheck::wanted() const {
  if (!automatic_) return 0;
  if (step_s_ == 0) return static_cast<double>(steps_);
  return std::clamp(std::ceil(looks_s_ / (kMostCost * step_s_)), 1.0, kMostSteps);
}

void RollingCheck::end_step(double sum_of_wanted, int ranks) {
  if (++at_ < steps_) return;
  if (automatic_) {
    const double mean = std::ceil(sum_of_wanted / ranks);
    steps_ = static_cast<std::int64_t>(std::clamp(mean, 1.0, kMostSteps));
  }
  restart();
}

void RollingCheck::restart() {
  at_ = 0;
  looks_s_ = step_s_ = 0;
}

bool FaultyRanks::note(const std::string& name, std::int64_t step) {
  std::deque<std::int64_t>& steps = steps_[name];
  steps.push_back(step);
  while (steps.front() <= step - kWithin) steps.pop_front();
  return steps.size() >= kMost;
}

}  // namespace stormo::protocol
