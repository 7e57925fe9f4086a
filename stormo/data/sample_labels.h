#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stormo::data {

/// The labels of each sample, numbers from 0 on: its class or, in multi-label data, any number of
/// labels.
class SampleLabels {
 public:
  SampleLabels() = default;                         ///< unknown: of no sample
  SampleLabels(std::vector<std::int32_t> classes);  // NOLINT(google-explicit-constructor)
  /// Labels may be in any order; one that is listed twice counts once.
  explicit SampleLabels(const std::vector<std::vector<std::int32_t>>& sets);

  bool empty() const { return size() == 0; }
  std::int64_t size() const;  ///< samples
  std::span<const std::int32_t> of(std::int64_t sample) const;
  /// Each sample has exactly one label.
  bool one_each() const { return ends_.empty(); }
  /// The largest label + 1.
  std::int64_t count() const { return count_; }
  /// The labels of one sample after the other.
  std::span<const std::int32_t> all() const { return labels_; }
  /// Where those of each sample end in all(); empty if one_each().
  std::span<const std::int64_t> ends() const { return ends_; }

 private:
  void count_labels();
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> ends_;
  std::int64_t count_ = 0;
};

}  // namespace stormo::data
