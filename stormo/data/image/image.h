#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// A decoded image: rows from the top, the channels of a pixel contiguous (height x width x
/// channels).
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;  ///< 1: grey, 3: red, green, blue
  std::vector<std::uint8_t> pixels;
};

/// Larger images are refused before memory is allocated.
inline constexpr std::int64_t kMaxPixels = 1 << 26;

/// Whether the first bytes are those of a format that decode_image() reads.
bool is_known_image(std::string_view bytes);

/// Decodes JPEG (libjpeg-turbo) or PNG (libpng) to `channels` 1 or 3; transparent pixels are
/// blended with black. kCorrupt, with the library's message, for bytes that are damaged, truncated
/// or of another format; messages do not name the file. A large JPEG may be decoded at a half, a
/// quarter or an eighth of its size if both sides remain at least `height` and `width`; this is
/// much faster than decoding it fully before resizing.
Result<Image> decode_image(std::string_view bytes, std::int64_t channels, std::int64_t height,
                           std::int64_t width);

/// Resizes the largest centred crop of `image` with the aspect ratio of height x width to this
/// size: linear interpolation, averaging where it shrinks (Pillow's BILINEAR). Writes channels x
/// height x width values in [0, 255] to `out`.
void resize_and_crop(const Image& image, std::int64_t height, std::int64_t width,
                     std::span<float> out);

}  // namespace stormo::data
