#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

/// Some samples of another dataset.
class Subset final : public Dataset {
 public:
  /// `samples`: at least one, each in [0, all->size()).
  Subset(std::shared_ptr<const Dataset> all, std::vector<std::int64_t> samples);

  std::int64_t size() const override { return std::ssize(samples_); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  std::span<const std::int32_t> lengths() const override { return lengths_; }
  SampleLabels strata() const override;
  std::uint64_t fingerprint() const override;

 private:
  std::shared_ptr<const Dataset> all_;
  std::vector<std::int64_t> samples_;
  std::vector<std::int32_t> lengths_;
};

/// A division of the samples of a data set into three parts, each in ascending order.
struct HeldOut {
  std::vector<std::int64_t> training, validation, test;
};

/// Draws so many samples for validation and test as their share of `samples` is, rounded. Depends
/// only on the arguments. kInvalidArgument when a part that is wanted has none.
Result<HeldOut> hold_out(std::int64_t samples, double validation_share, double test_share,
                         std::uint64_t seed);

}  // namespace stormo::data
