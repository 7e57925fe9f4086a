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

/// The local batch of one step.
struct StepBatch {
  Sampler::Slice slice;
  Batch batch;
};

/// The samples of a slice. What the dataset throws is returned as a Status, which names the
/// position. Blocks.
Result<Batch> load_slice(const Dataset& dataset, const Sampler::Slice& slice);

/// Loads the local batches of consecutive steps ahead of time, on threads of its own, until it is
/// destroyed.
class Prefetcher {
 public:
  /// Starts with the step at cursor `first`. At most `depth` >= 1 batches are loaded ahead;
  /// `threads` >= 1 of them are loaded at the same time, which helps datasets that decode images.
  /// More threads than `depth` are not used.
  Prefetcher(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::int64_t first, int depth,
             int threads = 1);
  /// Blocks until the batches that are being loaded are complete, and discards all batches.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch of the next step, in the order of steps for any number of threads; blocks while it
  /// is being loaded. An exception of the dataset is returned as a Status after the batches before
  /// it, and by all later calls.
  Result<StepBatch> next();

 private:
  void run();

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
