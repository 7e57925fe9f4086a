#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

#include <stormo/data/sample_labels.h>

namespace stormo::data {

/// Some samples, stacked along dimension 0.
struct Batch {
  torch::Tensor input;
  torch::Tensor target;  ///< undefined where another rank has the labels
  std::int64_t size() const { return input.defined() ? input.size(0) : 0; }
  /// The same on a device; itself, where it is there.
  Batch to(torch::Device device) const {
    const auto moved = [device](const torch::Tensor& t) { return t.defined() ? t.to(device) : t; };
    return {moved(input), moved(target)};
  }
};

/// Random access to samples. Implement it to train on your own data (examples/custom_dataset.cc).
/// Every rank must have a dataset with the same samples in the same order.
///
/// It must be immutable and thread-safe: several prefetch threads call get() at the same time, and
/// evaluation does. An exception ends the run on all ranks with its text, after the preceding
/// steps; an Error keeps its Code. get() should avoid libtorch's parallel loops (large elementwise
/// operations, matrix products), which would start a second pool of threads besides the trainer's.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of samples, at least 1; always the same.
  virtual std::int64_t size() const = 0;
  /// The samples at `indices`, each in [0, size()), in that order; `indices` may be empty. The
  /// result may depend on `epoch` (text windows shift each epoch), but must be a pure function of
  /// (indices, epoch). Thread-safe.
  virtual Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const = 0;
  /// The cost of each sample, in any unit (tokens), used to give all ranks about equal work in a
  /// step (Sampler::balance); empty: all are equal. Valid as long as the dataset.
  virtual std::span<const std::int32_t> lengths() const { return {}; }
  /// The class of each sample, or its labels, for stratified sharding (Sampler::shard); of targets
  /// that are numbers, the range that they are in (quantile_bins). Empty: unknown.
  virtual SampleLabels strata() const { return {}; }
  /// Hash of the content, with bounded cost (see Fingerprint): equal on ranks that have the same
  /// samples. The Trainer compares it between ranks before the first step. 0: unknown; then only
  /// the number of samples is compared.
  virtual std::uint64_t fingerprint() const { return 0; }
};

}  // namespace stormo::data
