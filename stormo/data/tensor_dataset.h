#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/npy.h>

namespace stormo::data {

/// Samples in one array: row i of the inputs, with targets[i]. Rows are converted batch by batch,
/// so inputs may be files larger than memory.
class TensorDataset final : public Dataset {
 public:
  enum class Targets : std::uint8_t {
    kClasses,  ///< whole numbers from 0 on
    kNumbers,  ///< finite numbers, batches are [B] of the samples' dtype
  };

  /// `inputs` [N, ...], contiguous, of a floating type or of whole numbers: bytes (uint8) become
  /// byte / 255, all others keep their value. `targets` [N], whole numbers from 0 on. Batches are
  /// [B, ...] of `dtype` (float32 or float64) and [B] int64; inputs [N, H, W] are greyscale images
  /// and give [B, 1, H, W]. kInvalidArgument says what is wrong. `bins`: how many strata targets
  /// that are numbers have.
  static Result<std::shared_ptr<const TensorDataset>> create(torch::Tensor inputs,
                                                             const torch::Tensor& targets,
                                                             torch::ScalarType dtype,
                                                             Targets kind = Targets::kClasses,
                                                             std::int64_t bins = 10);
  /// The same; rows are read from the file when they are needed. get() throws Error when the file
  /// has become shorter.
  static Result<std::shared_ptr<const TensorDataset>> create(NpyArray inputs,
                                                             const torch::Tensor& targets,
                                                             torch::ScalarType dtype,
                                                             Targets kind = Targets::kClasses,
                                                             std::int64_t bins = 10);

  std::int64_t size() const override { return targets_.size(0); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  SampleLabels strata() const override;
  std::uint64_t fingerprint() const override;

  /// Shape of one sample, e.g. {1, 28, 28}.
  const std::vector<std::int64_t>& sample_shape() const { return sample_shape_; }
  /// Largest target + 1; 0 if targets are numbers.
  std::int64_t classes() const { return classes_; }

 private:
  TensorDataset() = default;
  Status take(at::IntArrayRef input_sizes, const torch::Tensor& targets, torch::ScalarType dtype,
              Targets kind, std::int64_t bins);
  const void* row(std::int64_t index, std::span<std::byte> scratch) const;

  torch::Tensor inputs_;          // undefined: they lie in file_
  std::optional<NpyArray> file_;  // undefined: they lie in inputs_
  torch::ScalarType input_type_ = torch::kFloat32;
  std::int64_t row_elements_ = 0;
  torch::Tensor targets_;  // int64, or numbers of dtype_
  std::vector<std::int64_t> sample_shape_;
  std::int64_t classes_ = 0;
  std::int64_t bins_ = 10;
  torch::ScalarType dtype_ = torch::kFloat32;
};

}  // namespace stormo::data
