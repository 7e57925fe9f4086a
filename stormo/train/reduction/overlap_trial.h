#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/reduction/reduction.h>

namespace stormo::train {

std::string to_string(const Overlap& overlap);

/// What may be the fastest for `bytes` of gradients: at the end, and some sizes of buckets.
std::vector<Overlap> overlaps_to_try(std::int64_t bytes);

/// Finds the best Overlap by trying a few of them for some steps each. All ranks make the same
/// choice. If overlap cannot be faster (one host whose cores are all computing), it uses kInline
/// without a trial.
class OverlapTrial {
 public:
  /// A collective if `wanted` is Overlap::measured(). `bytes`: of all gradients.
  OverlapTrial(comm::Communicator& world, Overlap wanted, std::int64_t bytes);

  /// The overlap to use in the next step.
  const Overlap& current() const { return candidates_[at_]; }
  /// Call after each step; true when current() has changed. A collective at the end of the trial.
  Result<bool> step_done(comm::Communicator& world);
  std::string describe() const;

 private:
  std::vector<Overlap> candidates_;
  std::vector<double> seconds_;  // best step of each candidate
  std::size_t at_ = 0;
  int steps_ = 0;
  bool over_ = true;
  TimePoint last_{};
};

}  // namespace stormo::train
