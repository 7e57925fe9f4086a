#pragma once

#include <png.h>
#include <turbojpeg.h>

#include <array>
#include <string>
#include <vector>

#include <stormo/data/image/image.h>

namespace stormo::data {

/// A picture with a smooth slope in each channel, which JPEG keeps nearly as it is.
inline Image slope(std::int64_t height, std::int64_t width, std::int64_t channels) {
  Image image{.height = height, .width = width, .channels = channels, .pixels = {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t value = c == 0   ? 255 * x / width
                                   : c == 1 ? 255 * y / height
                                            : 255 * (x + y) / (width + height);
        image.pixels.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  return image;
}

inline std::string jpeg_bytes(const Image& image) {
  const tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  tjCompress2(encoder, image.pixels.data(), static_cast<int>(image.width), 0,
              static_cast<int>(image.height), image.channels == 1 ? TJPF_GRAY : TJPF_RGB, &bytes,
              &size, image.channels == 1 ? TJSAMP_GRAY : TJSAMP_444, 95, 0);
  std::string result(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return result;
}

/// A JPEG for print of one colour: inks as Adobe writes them, 255 is none.
inline std::string print_jpeg(int height, int width, std::array<std::uint8_t, 4> inks) {
  std::vector<std::uint8_t> pixels;
  for (int i = 0; i < height * width; ++i) pixels.insert(pixels.end(), inks.begin(), inks.end());
  const tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  tjCompress2(encoder, pixels.data(), width, 0, height, TJPF_CMYK, &bytes, &size, TJSAMP_444, 95,
              0);
  std::string result(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return result;
}

inline std::string png_bytes(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.height);
  png.width = static_cast<png_uint_32>(image.width);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&png, nullptr, &size, 0, image.pixels.data(), 0, nullptr);
  std::string bytes(size, '\0');
  png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

}  // namespace stormo::data
