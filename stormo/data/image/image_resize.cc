// Resampling along one dimension at a time with a triangle whose foot is as wide as a step of the
// output, at least one pixel of the input to each side: interpolation where a picture grows, a
// weighted mean over all pixels where it shrinks.
#include <algorithm>
#include <cmath>

#include <stormo/base/check.h>
#include <stormo/data/image/image.h>

namespace stormo::data {
namespace {

/// Which pixels of a line make one pixel of the result.
struct Tap {
  std::int64_t first = 0;
  std::vector<float> weights;  ///< their sum is 1
};

/// For `out` pixels that cover [begin, begin + out * step) of a line of `in` pixels.
std::vector<Tap> make_taps(std::int64_t in, std::int64_t out, double begin, double step) {
  std::vector<Tap> taps;
  const double reach = std::max(1.0, step);
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * step;
    const auto first = std::max<std::int64_t>(0, std::llround(centre - reach));
    const auto last = std::min<std::int64_t>(in, std::llround(centre + reach));
    Tap tap{.first = first, .weights = {}};
    double sum = 0;
    for (std::int64_t k = first; k < last; ++k) {
      const double distance = std::abs(static_cast<double>(k) + 0.5 - centre) / reach;
      tap.weights.push_back(static_cast<float>(std::max(0.0, 1 - distance)));
      sum += tap.weights.back();
    }
    for (float& weight : tap.weights) weight = static_cast<float>(weight / sum);
    taps.push_back(std::move(tap));
  }
  return taps;
}

}  // namespace

void resize_and_crop(const Image& image, std::int64_t height, std::int64_t width,
                     std::span<float> out) {
  const std::int64_t channels = image.channels;
  STORMO_CHECK(std::ssize(out) == channels * height * width, "room for the whole picture");
  const double step = std::min(static_cast<double>(image.height) / static_cast<double>(height),
                               static_cast<double>(image.width) / static_cast<double>(width));
  const auto margin = [step](std::int64_t in, std::int64_t part) {
    return (static_cast<double>(in) - static_cast<double>(part) * step) / 2;
  };
  const auto rows = make_taps(image.height, height, margin(image.height, height), step);
  const auto columns = make_taps(image.width, width, margin(image.width, width), step);

  // Rows first: each becomes `width` pixels, then rows are mixed.
  const std::int64_t top = rows.front().first;
  const std::int64_t bottom = rows.back().first + std::ssize(rows.back().weights);
  const std::int64_t line = width * channels;
  std::vector<float> narrow(static_cast<std::size_t>((bottom - top) * line));
  for (std::int64_t y = top; y < bottom; ++y) {
    const std::uint8_t* in = image.pixels.data() + y * image.width * channels;
    float* to = narrow.data() + (y - top) * line;
    for (const Tap& tap : columns) {
      for (std::int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        const std::uint8_t* pixel = in + tap.first * channels + c;
        for (const float weight : tap.weights) {
          sum += weight * static_cast<float>(*pixel);
          pixel += channels;
        }
        *to++ = sum;
      }
    }
  }
  for (std::int64_t y = 0; y < height; ++y) {
    const Tap& tap = rows[static_cast<std::size_t>(y)];
    const float* in = narrow.data() + (tap.first - top) * line;
    for (std::int64_t i = 0; i < line; ++i) {
      float sum = 0;
      for (std::size_t k = 0; k < tap.weights.size(); ++k) {
        sum += tap.weights[k] * in[static_cast<std::int64_t>(k) * line + i];
      }
      const std::int64_t x = i / channels, c = i % channels;
      out[static_cast<std::size_t>((c * height + y) * width + x)] = sum;
    }
  }
}

}  // namespace stormo::data
