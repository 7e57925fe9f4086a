#include <stormo/data/prefetch.h>

#include <exception>
#include <string>
#include <utility>

#include <stormo/base/check.h>

namespace stormo::data {

Result<Batch> load_slice(const Dataset& dataset, const Sampler::Slice& slice) {
  const std::string context =
      "load the batch at sample " + std::to_string(slice.next - slice.global_size);
  try {
    return dataset.get(slice.indices, slice.epoch);
  } catch (const Error& e) {
    return e.status().within(context);
  } catch (const std::exception& e) {
    return Status(Code::kIo, e.what()).within(context);
  }
}

Prefetcher::Prefetcher(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::int64_t first,
                       int depth, int threads)
    : dataset_(std::move(dataset)), depth_(depth), sampler_(std::move(sampler)), cursor_(first) {
  STORMO_CHECK(depth >= 1 && threads >= 1, "a prefetcher keeps a batch and has a thread");
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Result<StepBatch> Prefetcher::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_.contains(delivered_); });
  const auto first = ready_.find(delivered_);
  if (!first->second.ok()) return first->second.status();
  Result<StepBatch> batch = std::move(first->second);
  ready_.erase(first);
  ++delivered_;
  lock.unlock();
  changed_.notify_all();
  return batch;
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || begun_ < delivered_ + depth_; });
    if (stop_) return;
    const std::int64_t number = begun_++;
    Sampler::Slice slice = sampler_.slice(cursor_);
    cursor_ = slice.next;
    lock.unlock();
    Result<Batch> batch = load_slice(*dataset_, slice);
    Result<StepBatch> loaded =
        batch.ok() ? Result<StepBatch>(StepBatch{std::move(slice), std::move(*batch)})
                   : Result<StepBatch>(batch.status());
    lock.lock();
    if (!loaded.ok()) stop_ = true;  // what others have begun is still delivered before it
    ready_.emplace(number, std::move(loaded));
    changed_.notify_all();
  }
}

}  // namespace stormo::data
