#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>

namespace stormo::data {

/// This rank's part of one step's global batch.
struct StepBatch {
  Sampler::Slice slice;
  Batch batch;
};

/// Loads the batches of consecutive steps ahead of time, on threads of its own, without end.
class Prefetcher {
 public:
  /// Starts with the step at cursor `first`. At most `depth` >= 1 batches are loaded and not yet
  /// taken; `threads` >= 1 of them are loaded at the same time (datasets that decode images), more
  /// than `depth` have nothing to do.
  Prefetcher(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::int64_t first, int depth,
             int threads = 1);
  /// Waits for the batches that are being loaded, drops what was not taken.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch of the next step, in the order of the steps on any number of threads; blocks while
  /// it is being loaded. An exception of the dataset becomes a Status, once the batches before it
  /// have been taken; it stays.
  Result<StepBatch> next();

 private:
  void run();
  Result<StepBatch> load(Sampler::Slice slice);

  const std::shared_ptr<const Dataset> dataset_;
  const std::int64_t depth_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Sampler sampler_;
  std::int64_t cursor_;                              // of the step that is begun next
  std::int64_t begun_ = 0;                           // steps that a thread has taken on
  std::int64_t delivered_ = 0;                       // steps that next() has returned
  std::map<std::int64_t, Result<StepBatch>> ready_;  // by number of the step
  bool stop_ = false;                                // also after a failure
  std::vector<std::thread> threads_;
};

}  // namespace stormo::data
