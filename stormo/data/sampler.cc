#include <stormo/data/sampler.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>

namespace stormo::data {

Sampler::Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
                 int rank, int size)
    : samples_(samples),
      global_batch_(global_batch),
      seed_(seed),
      shuffle_(shuffle),
      rank_(rank),
      size_(size) {
  STORMO_CHECK(samples > 0 && global_batch > 0, "a sampler needs samples and a batch size");
  STORMO_CHECK(0 <= rank && rank < size, "rank must be in [0, size)");
}

std::int64_t Sampler::steps_per_epoch() const {
  return samples_ / global_batch_ + (samples_ % global_batch_ != 0 ? 1 : 0);
}

Sampler::Slice Sampler::slice(std::int64_t step) {
  STORMO_CHECK(step >= 0, "steps count from 0");
  Slice slice;
  slice.epoch = step / steps_per_epoch();
  const std::int64_t first = step % steps_per_epoch() * global_batch_;
  slice.global_size = std::min(global_batch_, samples_ - first);

  const std::int64_t share = slice.global_size / size_;
  const std::int64_t larger = slice.global_size % size_;  // the first ranks take one more
  const std::int64_t begin = first + rank_ * share + std::min<std::int64_t>(rank_, larger);
  const std::int64_t count = share + (rank_ < larger ? 1 : 0);

  if (shuffle_ && order_epoch_ != slice.epoch) {
    order_.resize(static_cast<std::size_t>(samples_));
    Rng rng(seed_, "order", static_cast<std::uint64_t>(slice.epoch));
    permutation(rng, order_);
    order_epoch_ = slice.epoch;
  }
  slice.indices.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = begin; i < begin + count; ++i) {
    slice.indices.push_back(shuffle_ ? order_[static_cast<std::size_t>(i)] : i);
  }
  return slice;
}

}  // namespace stormo::data
