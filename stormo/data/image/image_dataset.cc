#include <stormo/data/image/image_dataset.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/data/fingerprint.h>
#include <stormo/data/image/idx.h>

namespace stormo::data {
namespace {

constexpr std::int64_t kMnistSide = 28;
constexpr int kMnistClasses = 10;

/// The first of the names under which `directory` may hold the file.
Result<std::string> find_file(const std::string& directory, const std::string& prefix,
                              const std::string& suffix) {
  std::vector<std::string> names;
  for (const char separator : {'-', '.'}) {  // both spellings are in circulation
    for (const char* extension : {"", ".gz"}) {
      names.push_back(fmt::format("{}{}{}{}", prefix, separator, suffix, extension));
      const auto path = std::filesystem::path(directory) / names.back();
      std::error_code ignored;  // an unreadable folder is reported as "not found" below
      if (std::filesystem::is_regular_file(path, ignored)) return path.string();
    }
  }
  return Status(Code::kNotFound,
                fmt::format("no MNIST file in \"{}\": looked for {}; set data.path to the folder "
                            "that holds it",
                            directory, fmt::join(names, ", ")));
}

template <class T>
void convert(const std::uint8_t* in, std::int64_t count, const std::array<double, 256>& value_of,
             T* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(value_of[in[i]]);
}

Status check_labels(const std::string& path, const std::vector<std::uint8_t>& labels) {
  const auto bad = std::ranges::find_if(labels, [](int label) { return label >= kMnistClasses; });
  if (bad == labels.end()) return {};
  return {Code::kCorrupt,
          fmt::format("{}: label {} of sample {} is not in 0..{}; fetch the file again", path, *bad,
                      bad - labels.begin(), kMnistClasses - 1)};
}

}  // namespace

ImageDataset::ImageDataset(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
                           std::int64_t height, std::int64_t width, const ImageOptions& options)
    : pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      height_(height),
      width_(width),
      dtype_(options.dtype) {
  STORMO_CHECK(std::ssize(pixels_) == std::ssize(labels_) * height * width, "one image per label");
  STORMO_CHECK(dtype_ == torch::kFloat32 || dtype_ == torch::kFloat64, "float32 or float64");
  for (std::size_t b = 0; b < value_of_.size(); ++b) {
    value_of_[b] = (static_cast<double>(b) / 255 - options.mean) / options.stddev;
  }
}

// Plain loops, no tensor operations: this runs on the prefetch thread too, where libtorch's
// parallel loops would start a second pool of threads.
Batch ImageDataset::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  const std::int64_t pixels = height_ * width_;
  Batch batch{torch::empty({std::ssize(indices), 1, height_, width_}, dtype_),
              torch::empty({std::ssize(indices)}, torch::kInt64)};
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  std::int64_t row = 0;
  for (const std::int64_t index : indices) {
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    const std::uint8_t* in = pixels_.data() + index * pixels;
    if (dtype_ == torch::kFloat64) {
      convert(in, pixels, value_of_, batch.input.mutable_data_ptr<double>() + row * pixels);
    } else {
      convert(in, pixels, value_of_, batch.input.mutable_data_ptr<float>() + row * pixels);
    }
    target[row++] = labels_[static_cast<std::size_t>(index)];
  }
  return batch;
}

std::uint64_t ImageDataset::fingerprint() const {
  Fingerprint content;
  content.add(height_);
  content.add(width_);
  content.add(std::as_bytes(std::span(value_of_)));
  content.add(std::as_bytes(std::span(pixels_)));
  content.add(std::as_bytes(std::span(labels_)));
  return content.value();
}

Result<std::shared_ptr<const ImageDataset>> load_mnist(const std::string& directory,
                                                       MnistSplit split,
                                                       const ImageOptions& options) {
  const std::string prefix = split == MnistSplit::kTrain ? "train" : "t10k";
  STORMO_ASSIGN_OR_RETURN(const std::string image_path,
                          find_file(directory, prefix + "-images", "idx3-ubyte"));
  STORMO_ASSIGN_OR_RETURN(const std::string label_path,
                          find_file(directory, prefix + "-labels", "idx1-ubyte"));
  STORMO_ASSIGN_OR_RETURN(IdxArray images, read_idx(image_path, 3));
  STORMO_ASSIGN_OR_RETURN(IdxArray labels, read_idx(label_path, 1));
  if (images.dims[1] != kMnistSide || images.dims[2] != kMnistSide) {
    return Status(Code::kCorrupt,
                  fmt::format("{}: images are {} x {}, expected {} x {}", image_path,
                              images.dims[1], images.dims[2], kMnistSide, kMnistSide));
  }
  if (images.dims[0] != labels.dims[0]) {
    return Status(Code::kCorrupt,
                  fmt::format("{} holds {} images but {} holds {} labels; fetch both again",
                              image_path, images.dims[0], label_path, labels.dims[0]));
  }
  if (labels.dims[0] == 0) {
    return Status(Code::kCorrupt,
                  fmt::format("{}: holds no images; fetch the file again", image_path));
  }
  STORMO_RETURN_IF_ERROR(check_labels(label_path, labels.values));
  return std::shared_ptr<const ImageDataset>(std::make_shared<ImageDataset>(
      std::move(images.values), std::move(labels.values), kMnistSide, kMnistSide, options));
}

}  // namespace stormo::data
