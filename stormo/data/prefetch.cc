#include <stormo/data/prefetch.h>

#include <exception>
#include <string>
#include <utility>

#include <stormo/base/check.h>

namespace stormo::data {

Prefetcher::Prefetcher(std::shared_ptr<const Dataset> dataset, Sampler sampler,
                       std::int64_t first_step, int depth)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      depth_(static_cast<std::size_t>(depth)) {
  STORMO_CHECK(depth >= 1, "a prefetcher keeps at least one batch");
  thread_ = std::thread([this, first_step] { run(first_step); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<StepBatch> Prefetcher::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || !failure_.ok(); });
  if (ready_.empty()) return failure_;
  StepBatch first = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return first;
}

void Prefetcher::run(std::int64_t step) {
  for (;; ++step) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_.size() < depth_; });
      if (stop_) return;
    }
    Result<StepBatch> loaded = load(step);
    {
      const std::lock_guard lock(mutex_);
      if (loaded.ok()) {
        ready_.push_back(std::move(loaded).value());
      } else {
        failure_ = loaded.status();
      }
    }
    changed_.notify_all();
    if (!loaded.ok()) return;
  }
}

Result<StepBatch> Prefetcher::load(std::int64_t step) {
  const std::string context = "load the batch of step " + std::to_string(step);
  try {
    Sampler::Slice slice = sampler_.slice(step);
    Batch batch = dataset_->get(slice.indices, slice.epoch);
    return StepBatch{step, std::move(slice), std::move(batch)};
  } catch (const Error& e) {
    return e.status().within(context);
  } catch (const std::exception& e) {
    return Status(Code::kIo, e.what()).within(context);
  }
}

}  // namespace stormo::data
