#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// A decoded picture: rows from the top, the channels of a pixel side by side.
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;  ///< 1: grey, 3: red, green, blue
  std::vector<std::uint8_t> pixels;
};

/// Larger pictures are refused before anything is allocated.
inline constexpr std::int64_t kMaxPixels = 1 << 26;

/// Whether the first bytes are those of a format that decode_image() reads.
bool is_known_image(std::string_view bytes);

/// Decodes JPEG (libjpeg-turbo) or PNG (libpng) to `channels` 1 or 3; transparency is laid over
/// black. kCorrupt, with the library's words, for damaged, truncated or foreign bytes; messages do
/// not name the file. A large JPEG may come at a half, a quarter or an eighth of its size as long
/// as both sides stay at least `height` and `width`: much faster, and what resizing would do
/// anyway.
Result<Image> decode_image(std::string_view bytes, std::int64_t channels, std::int64_t height,
                           std::int64_t width);

/// The largest centred part of `image` that has the form of height x width, resized to it: linear
/// interpolation, averaging where it shrinks (Pillow's BILINEAR). Writes channels x height x width
/// values in [0, 255] to `out`.
void resize_and_crop(const Image& image, std::int64_t height, std::int64_t width,
                     std::span<float> out);

}  // namespace stormo::data
