#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cli/bench/async/options.h>
#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// The recipe of a measured run of `ranks` ranks, as `stormo train` would read it: one thread per
/// rank, no checkpoint. kInvalidArgument lists what this program does not know.
Result<train::Recipe> step_recipe(const StepJob& job, int ranks);

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

/// For systems in another language: the weights before the first step, then all batches, each its
/// input and its target, as raw numbers in the order in which the model lists its parameters.
Status write_step_inputs(const StepJob& job, const std::string& path);
/// The model, its sizes, those of the run, and who is slow, as JSON.
Result<std::string> describe_step(const StepJob& job, const SlowWorker& slow);

}  // namespace stormo::cli
