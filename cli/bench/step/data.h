#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <cli/bench/step/options.h>
#include <stormo/data/dataset.h>

namespace stormo::cli {

/// Batches made beforehand, the same for every rank. An epoch is one step, so that the batch is a
/// function of the epoch; which samples are asked for makes no difference.
class StepData : public data::Dataset {
 public:
  StepData(const StepJob& job, int ranks);
  std::int64_t size() const override { return global_batch_; }
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  std::span<const data::Batch> batches() const { return batches_; }

 private:
  std::int64_t global_batch_;
  std::vector<data::Batch> batches_;
};

}  // namespace stormo::cli
