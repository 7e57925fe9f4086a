#include <stormo/data/image/image.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "image_bytes.h"
#include "mutate.h"

namespace stormo::data {
namespace {

using ::testing::HasSubstr;

Result<Image> decode(const std::string& bytes, std::int64_t channels, std::int64_t side = 1000) {
  return decode_image(bytes, channels, side, side);
}

TEST(DecodeImage, GivesThePixelsOfAPngExactlyAndOfAJpegNearly) {
  for (const std::int64_t channels : {1, 3}) {
    for (const auto& [height, width] : {std::pair{1, 1}, {7, 13}, {32, 32}, {65, 40}}) {
      const Image image = slope(height, width, channels);
      const auto png = decode(png_bytes(image), channels);
      ASSERT_TRUE(png.ok()) << png.status().to_string();
      EXPECT_EQ(png->pixels, image.pixels);
      const auto jpeg = decode(jpeg_bytes(image), channels);
      ASSERT_TRUE(jpeg.ok()) << jpeg.status().to_string();
      EXPECT_EQ(jpeg->height, height);
      EXPECT_EQ(jpeg->width, width);
      ASSERT_EQ(jpeg->pixels.size(), image.pixels.size());
      for (std::size_t i = 0; i < image.pixels.size(); ++i) {
        EXPECT_NEAR(jpeg->pixels[i], image.pixels[i], 12);
      }
    }
  }
}

TEST(DecodeImage, TurnsGreyIntoColourAndBack) {
  const Image grey = slope(8, 8, 1), colour = slope(8, 8, 3);
  for (const std::string& bytes : {png_bytes(grey), jpeg_bytes(grey)}) {
    const auto image = decode(bytes, 3);
    ASSERT_TRUE(image.ok());
    EXPECT_EQ(image->pixels.size(), 8u * 8 * 3);
    EXPECT_EQ(image->pixels[21], image->pixels[23]);  // red and blue of one pixel
  }
  for (const std::string& bytes : {png_bytes(colour), jpeg_bytes(colour)}) {
    EXPECT_EQ(decode(bytes, 1)->pixels.size(), 8u * 8);
  }
}

TEST(DecodeImage, MakesColoursOfTheInksOfAPrint) {
  // {cyan, magenta, yellow, black} let through so much of red, green, blue; black of all
  const auto image = decode(print_jpeg(20, 30, {255, 128, 0, 200}), 3);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  ASSERT_EQ(image->pixels.size(), 20u * 30 * 3);
  EXPECT_NEAR(image->pixels[0], 200, 4);
  EXPECT_NEAR(image->pixels[1], 200 * 128 / 255, 4);
  EXPECT_NEAR(image->pixels[2], 0, 4);
  const auto grey = decode(print_jpeg(20, 30, {255, 128, 0, 200}), 1);
  ASSERT_EQ(grey->pixels.size(), 20u * 30);
  EXPECT_NEAR(grey->pixels[0], 0.299 * 200 + 0.587 * 100, 4);
  EXPECT_EQ(decode(print_jpeg(128, 200, {1, 2, 3, 4}), 3, 32)->height, 32);
}

TEST(DecodeImage, KeepsTheHighByteOfSixteenBits) {
  // 1 x 1, grey, 16 bits, the value 0x8000; made by Python's zlib
  const std::vector<std::uint8_t> bytes = {
      0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x10, 0x00, 0x00, 0x00,
      0x00, 0x6a, 0xee, 0x47, 0x16, 0x00, 0x00, 0x00, 0x0b, 0x49, 0x44, 0x41, 0x54, 0x78,
      0x9c, 0x63, 0x68, 0x60, 0x00, 0x00, 0x01, 0x03, 0x00, 0x81, 0x3e, 0x4c, 0xc5, 0x93,
      0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
  const auto image = decode(std::string(bytes.begin(), bytes.end()), 1);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_NEAR(image->pixels[0], 128, 1);
}

TEST(DecodeImage, HalvesALargeJpegNoFurtherThanAsked) {
  const std::string bytes = jpeg_bytes(slope(128, 200, 3));
  for (const auto& [side, height] :
       {std::pair{128, 128}, {100, 128}, {64, 64}, {33, 64}, {32, 32}, {16, 16}, {1, 16}}) {
    const auto image = decode(bytes, 3, side);
    ASSERT_TRUE(image.ok());
    EXPECT_EQ(image->height, height) << side;
    EXPECT_EQ(image->width, 200 * height / 128) << side;
  }
}

TEST(DecodeImage, RefusesEveryTruncation) {
  const Image image = slope(24, 24, 3);
  for (const std::string& bytes : {png_bytes(image), jpeg_bytes(image)}) {
    // JPEG ends in two bytes that say so, PNG in a chunk of twelve without content.
    const std::size_t needed = bytes.size() - (bytes[0] == '\xff' ? 2 : 12);
    for (std::size_t length = 0; length < needed; ++length) {
      const Status status = decode(bytes.substr(0, length), 3).status();
      EXPECT_EQ(status.code(), Code::kCorrupt) << length << " of " << bytes.size();
      EXPECT_THAT(status.message(), HasSubstr("mend or remove the image"));
    }
  }
}

TEST(DecodeImage, SurvivesMutations) {
  const Image image = slope(16, 20, 3);
  int refused = 0;
  for (const std::string& whole : {png_bytes(image), jpeg_bytes(image)}) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      const auto decoded = decode(mutate(whole, seed), 3, 8);
      if (!decoded.ok()) ++refused;
      if (!decoded.ok()) continue;
      ASSERT_LE(decoded->height * decoded->width, kMaxPixels);
      ASSERT_EQ(std::ssize(decoded->pixels), decoded->height * decoded->width * 3);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(DecodeImage, RefusesAnAbsurdSizeBeforeItAllocates) {
  std::string png = png_bytes(slope(4, 4, 1));
  png[16] = '\x00';
  png[17] = '\x0f';  // width: about a million
  png[20] = '\x00';
  png[21] = '\x0f';
  EXPECT_EQ(decode(png, 1).status().code(), Code::kCorrupt);  // the checksum, at the latest
  std::string jpeg = jpeg_bytes(slope(16, 16, 1));
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (const std::size_t at : {5, 6, 7, 8}) jpeg[frame + at] = '\xf0';
  EXPECT_THAT(decode(jpeg, 1).status().message(), HasSubstr("61680 x 61680 pixels"));
}

/// The formula, pixel by pixel, without taps and passes.
double resized(const Image& image, std::int64_t height, std::int64_t width, std::int64_t c,
               std::int64_t y, std::int64_t x) {
  const double step = std::min(static_cast<double>(image.height) / static_cast<double>(height),
                               static_cast<double>(image.width) / static_cast<double>(width));
  const double reach = std::max(1.0, step);
  const auto centre = [&](std::int64_t in, std::int64_t out, std::int64_t i) {
    return static_cast<double>(in) / 2 +
           (static_cast<double>(i) + 0.5 - static_cast<double>(out) / 2) * step;
  };
  const double cy = centre(image.height, height, y), cx = centre(image.width, width, x);
  double sum = 0, weights = 0;
  for (std::int64_t v = 0; v < image.height; ++v) {
    for (std::int64_t u = 0; u < image.width; ++u) {
      const double dy = std::abs(static_cast<double>(v) + 0.5 - cy) / reach;
      const double dx = std::abs(static_cast<double>(u) + 0.5 - cx) / reach;
      const double weight = std::max(0.0, 1 - dy) * std::max(0.0, 1 - dx);
      const auto at = static_cast<std::size_t>((v * image.width + u) * image.channels + c);
      sum += weight * image.pixels[at];
      weights += weight;
    }
  }
  return sum / weights;
}

TEST(ResizeAndCrop, IsTheFormula) {
  Rng rng(5, "pixels");
  for (const auto& [h, w, height, width] : {std::tuple{1, 1, 3, 2},
                                            {8, 8, 8, 8},
                                            {9, 14, 4, 4},
                                            {14, 9, 5, 3},
                                            {5, 6, 17, 11},
                                            {40, 7, 6, 6}}) {
    Image image = slope(h, w, 3);
    for (auto& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
    std::vector<float> out(static_cast<std::size_t>(3 * height * width));
    resize_and_crop(image, height, width, out);
    for (std::int64_t i = 0; i < std::ssize(out); ++i) {
      const double expected =
          resized(image, height, width, i / (height * width), i / width % height, i % width);
      EXPECT_NEAR(out[static_cast<std::size_t>(i)], expected, 1e-3)
          << h << " x " << w << " to " << height << " x " << width << " at " << i;
    }
  }
}

TEST(ResizeAndCrop, LeavesAPictureOfTheRightSizeAsItIs) {
  const Image image = slope(6, 5, 1);
  std::vector<float> out(30);
  resize_and_crop(image, 6, 5, out);
  EXPECT_TRUE(std::ranges::equal(out, image.pixels));
}

}  // namespace
}  // namespace stormo::data
