#pragma once

#include <cstdint>
#include <span>

#include <torch/types.h>

namespace stormo::data {

/// Some samples, stacked along dimension 0.
struct Batch {
  torch::Tensor input;
  torch::Tensor target;
  std::int64_t size() const { return input.defined() ? input.size(0) : 0; }
};

/// Random access to samples. Immutable and thread-safe: the prefetch thread reads it too.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The samples at `indices`, in that order. `epoch` lets a dataset shift its windows each epoch
  /// (text); it must be a pure function of (indices, epoch).
  virtual Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const = 0;
};

}  // namespace stormo::data
