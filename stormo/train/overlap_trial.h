#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Whether gradients are reduced while backward goes on.
struct Overlap {
  enum class Kind : std::uint8_t {
    kInline,    ///< at the end of backward
    kBuckets,   ///< in buckets of `bucket_bytes`, during backward
    kMeasured,  ///< whichever makes steps shortest, tried out in the first steps
  } kind = Kind::kMeasured;
  std::int64_t bucket_bytes = 0;

  static Overlap measured() { return {}; }
  static Overlap at_the_end() { return {Kind::kInline, 0}; }
  static Overlap buckets(std::int64_t bytes) { return {Kind::kBuckets, bytes}; }
  bool operator==(const Overlap&) const = default;
};

std::string to_string(const Overlap& overlap);

/// Finds the best Overlap by trying a few of them for some steps each. All ranks decide alike.
/// Where overlap cannot pay (one host whose cores are all computing) it stays inline and nothing is
/// tried.
class OverlapTrial {
 public:
  /// A collective for Overlap::measured(); `bytes` of all gradients.
  OverlapTrial(comm::Communicator& world, Overlap wanted, std::int64_t bytes);

  /// What the next step shall use.
  const Overlap& current() const { return candidates_[at_]; }
  /// A step has ended; true when current() has changed. A collective at the end of the trial.
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
