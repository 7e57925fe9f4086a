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

  /// `inputs` [N, ...], contiguous, of float16, bfloat16, float32, float64, or of whole numbers of
  /// 8 (with or without sign), 16, 32 or 64 bits: bytes (uint8) become byte / 255, all others keep
  /// their value. `targets` [N], whole numbers from 0 on. Batches are [B, ...] of `dtype`
  /// (float32 or float64) and [B] int64; inputs [N, H, W] are greyscale images and give [B, 1, H,
  /// W]. kInvalidArgument says what is wrong, also of a number that is not finite as `dtype`.
  /// `bins`: how many strata targets that are numbers have. `channels_last`: inputs [N, H, W, C]
  /// give [B, C, H, W].
  static Result<std::shared_ptr<const TensorDataset>> create(
      torch::Tensor inputs, const torch::Tensor& targets, torch::ScalarType dtype,
      Targets kind = Targets::kClasses, std::int64_t bins = 10, bool channels_last = false);
  /// The same; rows are read from the file when they are needed. get() throws Error when the file
  /// has become shorter. Of a file up to Fingerprint::kMostBytes all numbers are looked at now, of
  /// a larger one in get(), which throws Error.
  static Result<std::shared_ptr<const TensorDataset>> create(
      NpyArray inputs, const torch::Tensor& targets, torch::ScalarType dtype,
      Targets kind = Targets::kClasses, std::int64_t bins = 10, bool channels_last = false);

  std::int64_t size() const override { return targets_.size(0); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  SampleLabels strata() const override;
  std::uint64_t fingerprint() const override;

  /// Shape of one sample, e.g. {1, 28, 28}.
  const std::vector<std::int64_t>& sample_shape() const { return sample_shape_; }
  std::vector<double> target_numbers() const;
  /// Largest target + 1; 0 if targets are numbers.
  std::int64_t classes() const { return classes_; }

 private:
  struct Options {
    torch::ScalarType dtype = torch::kFloat32;
    Targets targets = Targets::kClasses;
    std::int64_t bins = 10;
    bool channels_last = false;
  };

  TensorDataset() = default;
  Status take(at::IntArrayRef input_sizes, const torch::Tensor& targets, const Options& options);
  Status check_numbers() const;
  const void* row(std::int64_t index, std::span<std::byte> scratch) const;
  template <class T>
  Status copy_row(std::int64_t index, std::span<std::byte> scratch, std::span<T> numbers,
                  T* out) const;

  torch::Tensor inputs_;          // undefined: they lie in file_
  std::optional<NpyArray> file_;  // undefined: they lie in inputs_
  torch::ScalarType input_type_ = torch::kFloat32;
  std::int64_t row_elements_ = 0;
  torch::Tensor targets_;  // int64, or numbers of the dtype
  std::vector<std::int64_t> sample_shape_;
  std::int64_t classes_ = 0;
  Options options_;
};

}  // namespace stormo::data
