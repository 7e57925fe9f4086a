#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

/// What is done to images between the file and the model.
struct ImageTransformOptions {
  /// Values become (value - mean) / stddev, per channel or one for all; both empty: they stay.
  std::vector<double> mean{};
  std::vector<double> stddev{};
  bool flip = false;      ///< left and right change places in half of the cases
  std::int64_t crop = 0;  ///< each image moves by up to so many pixels, both ways; 0: it stays
  /// Value of what moves in from outside, before it is normalised.
  double border = 0;
  std::uint64_t seed = 0;
};

/// The images of another dataset, normalised and augmented. What is drawn for an image is a
/// function of (seed, epoch, sample) alone: any number of ranks, threads and resumptions sees the
/// same data. A crop is the one of He et al. 2016: padding on every side, then a part of the first
/// size.
class TransformedImages final : public Dataset {
 public:
  /// `images` gives batches [B, channels, height, width] of float32 or float64.
  /// kInvalidArgument says which option does not fit.
  static Result<std::shared_ptr<const TransformedImages>> create(
      std::shared_ptr<const Dataset> images, const std::vector<std::int64_t>& shape,
      ImageTransformOptions options);

  std::int64_t size() const override { return images_->size(); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  std::span<const std::int32_t> lengths() const override { return images_->lengths(); }
  std::uint64_t fingerprint() const override;

 private:
  TransformedImages() = default;

  std::shared_ptr<const Dataset> images_;
  std::int64_t channels_ = 0, height_ = 0, width_ = 0;
  ImageTransformOptions options_;  // mean and stddev per channel
};

}  // namespace stormo::data
