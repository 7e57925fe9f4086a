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

/// Random access to samples: what a program implements to train on data of its own
/// (examples/custom_dataset.cc). Every rank has one over the same samples, in the same order.
///
/// Immutable and thread-safe: get() is called by the prefetch threads, several at a time, and by
/// evaluation. An exception ends the run on all ranks with its text, after the steps before it; an
/// Error keeps its Code. get() had best work without libtorch's parallel loops (large element-wise
/// operations, matrix products), which would start a second pool of threads beside the trainer's.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of samples, at least 1; always the same.
  virtual std::int64_t size() const = 0;
  /// The samples at `indices`, each in [0, size()), in that order; `indices` may be empty. `epoch`
  /// lets a dataset shift its windows each epoch (text); it must be a pure function of (indices,
  /// epoch).
  virtual Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const = 0;
  /// How long each sample takes, in any unit (tokens), so that the ranks of a step get about equal
  /// sums (Sampler::balance); empty: all take equally long. Lives as long as the dataset.
  virtual std::span<const std::int32_t> lengths() const { return {}; }
  /// Hash of the content: equal on two ranks that hold the same samples, and at bounded cost (see
  /// Fingerprint). The Trainer compares it between ranks before the first step. 0: not known, then
  /// only the number of samples is compared.
  virtual std::uint64_t fingerprint() const { return 0; }
};

}  // namespace stormo::data
