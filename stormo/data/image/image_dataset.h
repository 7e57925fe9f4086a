#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

/// How bytes become the inputs of a model: (byte / 255 - mean) / stddev.
struct ImageOptions {
  torch::ScalarType dtype = torch::kFloat32;  ///< or kFloat64
  double mean = 0.1307;                       ///< of MNIST's training images
  double stddev = 0.3081;
};

/// Greyscale images with a class each, kept as bytes and converted batch by batch. A batch is [B,
/// 1, height, width] and [B] int64.
class ImageDataset final : public Dataset {
 public:
  /// pixels.size() == labels.size() * height * width.
  ImageDataset(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
               std::int64_t height, std::int64_t width, const ImageOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  SampleLabels strata() const override {
    return std::vector<std::int32_t>(labels_.begin(), labels_.end());
  }
  std::uint64_t fingerprint() const override;

 private:
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  std::int64_t height_;
  std::int64_t width_;
  torch::ScalarType dtype_;
  std::array<double, 256> value_of_;  ///< of each byte
};

enum class MnistSplit : std::uint8_t { kTrain, kTest };

/// Reads one split of MNIST, or of a data set of the same form (28 x 28, 10 classes), from
/// `directory`: the files with their published names, plain or .gz. kNotFound lists the expected
/// files, kCorrupt names the file and what is wrong with it.
Result<std::shared_ptr<const ImageDataset>> load_mnist(const std::string& directory,
                                                       MnistSplit split,
                                                       const ImageOptions& options = {});

}  // namespace stormo::data
