#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <stormo/data/dataset.h>

namespace stormo::data {

/// What one rank has of samples whose columns lie on several ranks: its columns, and the targets if
/// it has the labels; else Batch::target is undefined.
class PartialSamples final : public Dataset {
 public:
  /// `identity` is equal on ranks that have the same samples: a hash of their number and ids.
  PartialSamples(std::shared_ptr<const Dataset> columns, bool labelled, std::uint64_t identity)
      : columns_(std::move(columns)), labelled_(labelled), identity_(identity) {}

  std::int64_t size() const override { return columns_->size(); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    Batch batch = columns_->get(indices, epoch);
    if (!labelled_) batch.target.reset();
    return batch;
  }
  /// The identity: what the ranks have of the samples differs.
  std::uint64_t fingerprint() const override { return identity_; }

 private:
  std::shared_ptr<const Dataset> columns_;
  bool labelled_;
  std::uint64_t identity_;
};

}  // namespace stormo::data
