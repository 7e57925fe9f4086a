#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

/// Normalisation and augmentation of images.
struct ImageTransformOptions {
  /// Values become (value - mean) / stddev, per channel or one for all; both empty: unchanged.
  std::vector<double> mean{};
  std::vector<double> stddev{};
  bool flip = false;      ///< mirror half of the images, left to right
  std::int64_t crop = 0;  ///< shift each image by up to so many pixels in both directions; 0: none
  /// Value of pixels outside the image, before normalisation.
  double border = 0;
  std::uint64_t seed = 0;
};

/// The images of another dataset, normalised and augmented. The random numbers for an image depend
/// only on (seed, epoch, sample), not on the number of ranks, threads and resumptions. A crop is
/// that of He et al. 2016: padding on every side, then a random crop of the original size.
class TransformedImages final : public Dataset {
 public:
  /// `images` gives batches [B, channels, height, width] of float32 or float64. kInvalidArgument
  /// names an invalid option.
  static Result<std::shared_ptr<const TransformedImages>> create(
      std::shared_ptr<const Dataset> images, const std::vector<std::int64_t>& shape,
      ImageTransformOptions options);

  std::int64_t size() const override { return images_->size(); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  std::span<const std::int32_t> lengths() const override { return images_->lengths(); }
  SampleLabels strata() const override { return images_->strata(); }
  std::uint64_t fingerprint() const override;

 private:
  TransformedImages() = default;

  std::shared_ptr<const Dataset> images_;
  std::int64_t channels_ = 0, height_ = 0, width_ = 0;
  ImageTransformOptions options_;  // mean and stddev per channel
};

}  // namespace stormo::data
