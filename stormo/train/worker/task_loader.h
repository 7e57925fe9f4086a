#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/prefetch.h>
#include <stormo/data/sampler.h>
#include <stormo/plan/project.h>
#include <stormo/server/ledger.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// Batches that a rank has loaded ahead, at most.
int prefetch_depth(const TrainerOptions& options);

/// Loads the batches of a worker that shares steps with others (server::Ledger): those of its own
/// share ahead of time, those of other shares, and portions, when they are needed. Not thread-safe.
class TaskLoader {
 public:
  /// `options` is borrowed. `rank`: this rank's part of what its worker computes. The steps begin
  /// as `terms` say.
  TaskLoader(std::shared_ptr<const data::Dataset> data, const TrainerOptions& options, int worker,
             int workers, const plan::Part& rank, const server::Ledger::Terms& terms);

  /// Blocks until the batch is loaded. Errors are those of data::Prefetcher.
  Result<data::Batch> load(const server::StepTask& task);
  /// Where a step of the run begins in the data: the samples before it, over all workers.
  std::int64_t cursor(std::uint64_t step);
  /// The step of the run in which so many samples are done, or behind which they are: the last one
  /// that begins there or earlier.
  std::uint64_t step_at(std::int64_t samples);

 private:
  data::Sampler& sampler_of(int part);
  void prefetch_from(std::uint64_t step);

  std::shared_ptr<const data::Dataset> data_;
  const TrainerOptions& options_;
  static constexpr int kNone = -1;
  int share_;  // the part of its own steps; kNone: it has none
  int parts_;  // of a batch
  plan::Part rank_;
  std::uint64_t first_step_;
  std::vector<std::int64_t> cursors_;  // from the first step on, as far as they were needed
  std::map<int, data::Sampler> samplers_;
  std::unique_ptr<data::Prefetcher> own_;
  std::uint64_t next_own_ = 0;  // the step that `own_` gives next
};

}  // namespace stormo::train
