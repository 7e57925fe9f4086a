#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <memory>

#include <stormo/base/check.h>
#include <stormo/data/image/image.h>

namespace stormo::data {
namespace {

constexpr std::string_view kJpegMagic = "\xff\xd8\xff";
constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1a\n";
constexpr std::int64_t kInks = 4;  // cyan, magenta, yellow, black

Status broken(std::string_view what) {
  return {Code::kCorrupt, fmt::format("{}; mend or remove the image", what)};
}

Status check_pixels(std::int64_t height, std::int64_t width) {
  if (height >= 1 && width >= 1 && height <= kMaxPixels / width) return {};
  return broken(fmt::format("{} x {} pixels, from 1 to {} are read", height, width, kMaxPixels));
}

Image make_image(std::int64_t height, std::int64_t width, std::int64_t channels) {
  Image image{.height = height, .width = width, .channels = channels, .pixels = {}};
  image.pixels.resize(static_cast<std::size_t>(height * width * channels));
  return image;
}

/// Sides of a JPEG at 1/8, 1/4, 1/2 or all of its size: the smallest that is large enough.
void scale_down(std::int64_t height, std::int64_t width, int& scaled_height, int& scaled_width) {
  for (const int denominator : {8, 4, 2}) {
    const tjscalingfactor factor{1, denominator};
    const int h = TJSCALED(scaled_height, factor), w = TJSCALED(scaled_width, factor);
    if (h < height || w < width) continue;
    scaled_height = h;
    scaled_width = w;
    return;
  }
}

/// Light that an ink lets through, from 0 to 255, times the same of black.
int light(std::uint8_t ink, std::uint8_t black) { return (ink * black + 127) / 255; }

/// The colours of a JPEG for print, which holds cyan, magenta, yellow and black, as Adobe writes
/// them: 255 is no ink.
Image from_inks(const Image& inks, std::int64_t channels) {
  Image image = make_image(inks.height, inks.width, channels);
  std::uint8_t* out = image.pixels.data();
  for (std::size_t at = 0; at < inks.pixels.size(); at += kInks) {
    const std::uint8_t* p = inks.pixels.data() + at;
    const int red = light(p[0], p[3]), green = light(p[1], p[3]), blue = light(p[2], p[3]);
    if (channels == 1) {  // as libjpeg weighs them
      *out++ = static_cast<std::uint8_t>((299 * red + 587 * green + 114 * blue + 500) / 1000);
    } else {
      for (const int value : {red, green, blue}) *out++ = static_cast<std::uint8_t>(value);
    }
  }
  return image;
}

Result<Image> decode_jpeg(std::string_view bytes, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (decoder == nullptr) return Status(Code::kExhausted, "no memory for the JPEG decoder");
  const auto failed = [&] {
    return broken(fmt::format("not a whole JPEG ({})", tjGetErrorStr2(decoder.get())));
  };
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int h = 0, w = 0, sampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &w, &h, &sampling, &colours) != 0) {
    return failed();
  }
  STORMO_RETURN_IF_ERROR(check_pixels(h, w));
  const bool inks = colours == TJCS_CMYK || colours == TJCS_YCCK;  // the decoder makes no RGB of it
  scale_down(height, width, h, w);
  Image image = make_image(h, w, inks ? kInks : channels);
  // a truncated picture is only a warning to the library; scans without end are its bomb
  const int flags = TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  const int format = inks ? TJPF_CMYK : channels == 1 ? TJPF_GRAY : TJPF_RGB;
  if (tjDecompress2(decoder.get(), data, bytes.size(), image.pixels.data(), w, 0, h, format,
                    flags) != 0) {
    return failed();
  }
  return inks ? from_inks(image, channels) : image;
}

Result<Image> decode_png(std::string_view bytes, std::int64_t channels) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> release(&png, png_image_free);
  const auto failed = [&] { return broken(fmt::format("not a whole PNG ({})", png.message)); };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) return failed();
  STORMO_RETURN_IF_ERROR(check_pixels(png.height, png.width));
  png.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // else 16 bits are taken for linear light
  Image image = make_image(png.height, png.width, channels);
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&png, &black, image.pixels.data(), 0, nullptr) == 0) return failed();
  return image;
}

}  // namespace

bool is_known_image(std::string_view bytes) {
  return bytes.starts_with(kJpegMagic) || bytes.starts_with(kPngMagic);
}

Result<Image> decode_image(std::string_view bytes, std::int64_t channels, std::int64_t height,
                           std::int64_t width) {
  STORMO_CHECK(channels == 1 || channels == 3, "grey or colour");
  if (bytes.starts_with(kPngMagic)) return decode_png(bytes, channels);
  if (bytes.starts_with(kJpegMagic)) return decode_jpeg(bytes, channels, height, width);
  return broken("neither a JPEG nor a PNG");
}

}  // namespace stormo::data
