#pragma once

#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/data/datasets/base.h>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

/// Any random-access dataset of libtorch (torch::data::datasets) as a Dataset, with its transforms:
///
///     torch::data::datasets::MNIST mnist(folder);
///     auto train = stormo::data::from_torch_dataset(std::move(mnist));
///
/// Its samples are torch::data::Example<>, or batches of these if it ends in map(Stack<>()).
/// libtorch's datasets are not thread-safe, so one get() runs at a time. The random numbers of its
/// transforms do not depend on the run's seed.
template <class Torch>
class TorchDataset final : public Dataset {
  static_assert(!Torch::is_stateful &&
                    std::is_same_v<typename Torch::BatchRequestType, torch::ArrayRef<std::size_t>>,
                "streams and datasets with a state have no samples by number; derive a "
                "stormo::data::Dataset from their data instead");

 public:
  explicit TorchDataset(Torch dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_.size();
    if (!size || *size == 0) {
      throw Error(invalid_argument("the torch dataset is empty, or does not know its size"));
    }
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }

  Batch get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const override {
    if (indices.empty()) return none();
    return fetch({indices.begin(), indices.end()});
  }

 private:
  Batch none() const {
    const Batch one = fetch({0});
    return {one.input.narrow(0, 0, 0), one.target.narrow(0, 0, 0)};
  }

  Batch fetch(std::vector<std::size_t> indices) const {
    const std::lock_guard lock(mutex_);
    auto samples = dataset_.get_batch(indices);
    if constexpr (std::is_same_v<decltype(samples), torch::data::Example<>>) {
      return {samples.data, samples.target};
    } else {
      std::vector<torch::Tensor> inputs, targets;
      for (const torch::data::Example<>& sample : samples) {
        inputs.push_back(sample.data);
        targets.push_back(sample.target);
      }
      return {torch::stack(inputs), torch::stack(targets)};
    }
  }

  mutable std::mutex mutex_;
  mutable Torch dataset_;
  std::int64_t size_ = 0;
};

template <class Torch>
std::shared_ptr<const Dataset> from_torch_dataset(Torch dataset) {
  return std::make_shared<TorchDataset<Torch>>(std::move(dataset));
}

}  // namespace stormo::data
