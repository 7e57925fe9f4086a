#include <stormo/data/image/image_transform.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>
#include <stormo/data/fingerprint.h>

namespace stormo::data {
namespace {

/// How one image is moved: output (y, x) is input (y + down, x + right), x mirrored first.
struct Move {
  bool flip = false;
  std::int64_t down = 0;
  std::int64_t right = 0;
};

Move draw_move(const ImageTransformOptions& o, std::int64_t epoch, std::int64_t sample) {
  Move move;
  if (!o.flip && o.crop == 0) return move;
  Rng rng(Rng(o.seed, "augment", static_cast<std::uint64_t>(epoch)).next_u64(), "sample",
          static_cast<std::uint64_t>(sample));
  if (o.flip) move.flip = rng.below(2) == 1;
  if (o.crop > 0) {
    const auto places = static_cast<std::uint64_t>(2 * o.crop + 1);
    move.down = static_cast<std::int64_t>(rng.below(places)) - o.crop;
    move.right = static_cast<std::int64_t>(rng.below(places)) - o.crop;
  }
  return move;
}

/// One channel from `in` to `out`, which do not overlap.
template <class T>
void transform(const T* in, T* out, std::int64_t height, std::int64_t width, const Move& move,
               T border, T scale, T shift) {
  for (std::int64_t y = 0; y < height; ++y) {
    const std::int64_t from_y = y + move.down;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t moved = x + move.right;
      const std::int64_t from_x = move.flip ? width - 1 - moved : moved;
      const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
      *out++ = (inside ? in[from_y * width + from_x] : border) * scale + shift;
    }
  }
}

Status check(const ImageTransformOptions& o, std::int64_t channels, std::int64_t height,
             std::int64_t width) {
  const auto fits = [channels](const std::vector<double>& values) {
    return values.size() == 1 || std::ssize(values) == channels;
  };
  if (!fits(o.mean) || !fits(o.stddev)) {
    return invalid_argument(
        fmt::format("data.mean has {} numbers and data.stddev {}; give one number, or one for each "
                    "of the {} channels, to both",
                    o.mean.size(), o.stddev.size(), channels));
  }
  if (std::ranges::any_of(o.stddev, [](double s) { return !(s > 0); })) {
    return invalid_argument("data.stddev must be greater than 0");
  }
  for (std::size_t c = 0; c < std::max(o.mean.size(), o.stddev.size()); ++c) {
    const double mean = o.mean[std::min(c, o.mean.size() - 1)];
    const double stddev = o.stddev[std::min(c, o.stddev.size() - 1)];
    const bool held = std::isfinite(static_cast<float>(1 / stddev)) &&
                      std::isfinite(static_cast<float>((1 + std::abs(mean)) / stddev));
    if (held) continue;
    return invalid_argument(fmt::format(
        "data.mean {} and data.stddev {} make numbers that float32 cannot hold", mean, stddev));
  }
  if (o.crop < 0 || o.crop >= height || o.crop >= width) {
    return invalid_argument(fmt::format(
        "data.crop is {}; it must be from 0 to less than the sides of the images, {} x {}", o.crop,
        height, width));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const TransformedImages>> TransformedImages::create(
    std::shared_ptr<const Dataset> images, const std::vector<std::int64_t>& shape,
    ImageTransformOptions options) {
  if (shape.size() != 3) {
    return invalid_argument(
        fmt::format("samples of shape [{}] are no images [channels, height, width]: leave out "
                    "data.mean, data.stddev, data.flip and data.crop",
                    fmt::join(shape, ", ")));
  }
  if (options.mean.empty()) options.mean = {0};
  if (options.stddev.empty()) options.stddev = {1};
  STORMO_RETURN_IF_ERROR(check(options, shape[0], shape[1], shape[2]));
  options.mean.resize(static_cast<std::size_t>(shape[0]), options.mean.front());
  options.stddev.resize(static_cast<std::size_t>(shape[0]), options.stddev.front());
  std::shared_ptr<TransformedImages> result(new TransformedImages());
  result->images_ = std::move(images);
  result->channels_ = shape[0];
  result->height_ = shape[1];
  result->width_ = shape[2];
  result->options_ = std::move(options);
  return std::shared_ptr<const TransformedImages>(std::move(result));
}

// Plain loops: see Dataset about threads.
Batch TransformedImages::get(std::span<const std::int64_t> indices, std::int64_t epoch) const {
  Batch batch = images_->get(indices, epoch);
  const torch::Tensor in = batch.input.contiguous();
  torch::Tensor out = torch::empty_like(in);
  const std::int64_t pixels = height_ * width_;
  STORMO_CHECK(in.numel() == std::ssize(indices) * channels_ * pixels, "images of the form given");
  const auto all = [&]<class T>(const T* from, T* to) {
    for (const std::int64_t index : indices) {
      const Move move = draw_move(options_, epoch, index);
      for (std::size_t c = 0; c < options_.mean.size(); ++c, from += pixels, to += pixels) {
        const double scale = 1 / options_.stddev[c];
        transform<T>(from, to, height_, width_, move, static_cast<T>(options_.border),
                     static_cast<T>(scale), static_cast<T>(-options_.mean[c] * scale));
      }
    }
  };
  if (in.scalar_type() == torch::kFloat64) {
    all(in.const_data_ptr<double>(), out.mutable_data_ptr<double>());
  } else {
    all(in.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  }
  batch.input = std::move(out);
  return batch;
}

std::uint64_t TransformedImages::fingerprint() const {
  const std::uint64_t images = images_->fingerprint();
  if (images == 0) return 0;
  Fingerprint content;
  content.add(static_cast<std::int64_t>(images));
  content.add(std::as_bytes(std::span(options_.mean)));
  content.add(std::as_bytes(std::span(options_.stddev)));
  content.add(static_cast<std::int64_t>(options_.flip));
  content.add(options_.crop);
  content.add(std::as_bytes(std::span(&options_.border, 1)));
  content.add(static_cast<std::int64_t>(options_.seed));
  return content.value();
}

}  // namespace stormo::data
