#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>

namespace stormo::data {

/// This rank's part of one step's global batch.
struct StepBatch {
  std::int64_t step = 0;
  Sampler::Slice slice;
  Batch batch;
};

/// Loads the batches of consecutive steps ahead of time, on a thread of its own, without end.
class Prefetcher {
 public:
  /// At most `depth` >= 1 batches wait to be taken.
  Prefetcher(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::int64_t first_step,
             int depth);
  /// Waits for the batch that is being loaded, drops what was not taken.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch of the next step; blocks while it is being loaded. An exception of the dataset
  /// becomes a Status, once the batches before it have been taken; it stays.
  Result<StepBatch> next();

 private:
  void run(std::int64_t step);
  Result<StepBatch> load(std::int64_t step);

  const std::shared_ptr<const Dataset> dataset_;
  Sampler sampler_;  // used by the thread alone
  const std::size_t depth_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepBatch> ready_;
  Status failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stormo::data
