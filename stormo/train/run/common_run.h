#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stormo/data/prefetch.h>
#include <stormo/train/run/training_run.h>

namespace stormo::train {

/// A run whose ranks meet between steps: there they evaluate and save together.
class CommonRun : public TrainingRun {
 protected:
  using TrainingRun::TrainingRun;

  Status prepare() override;
  Result<data::Batch> load() override;
  Status train() override;
  Status note_end() override;
  /// Trains until all ranks meet, or one step. `section`: the first of these steps.
  virtual Status train_some(const std::string& section) = 0;
  /// What is to do where all ranks meet, behind the steps of `section`. `agreed`: see RunProgress.
  Status meet(const std::string& section, bool agreed);
  /// Before step `number` of the run, from 1.
  void begin_step(std::int64_t number);
  /// From the next step on loads the part of `sampler`, from the present position on.
  void load_from(const data::Sampler& sampler);
  /// Of the batches of `sampler`, from the present position on.
  std::unique_ptr<data::Prefetcher> prefetcher_of(const data::Sampler& sampler) const;
  /// Whether this process was told to end, or to save.
  bool was_told() const;
  /// Ranks may have done different numbers of steps: all are where the slowest is, so that no
  /// sample is left out. A collective.
  Status take_slowest_position();
  std::int64_t loaded_samples() const { return loaded_samples_; }  ///< of all ranks, in the step

  Agreement agreed_;   // the last one
  StepOutcome round_;  // this rank's sums since then

 private:
  Status between_steps(bool agreed);

  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::int64_t loaded_samples_ = 0;
};

}  // namespace stormo::train
