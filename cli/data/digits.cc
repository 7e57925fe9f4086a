// Images of digits in the form of MNIST: glyphs of 5 x 7 points that are moved, scaled, slanted and
// overlaid with noise.
#include <array>
#include <cmath>
#include <cstdint>

#include <cli/data/sets.h>
#include <stormo/base/rng.h>

namespace stormo::cli {
namespace {

constexpr int kSide = 28, kRows = 7, kColumns = 5;

/// From top to bottom, five points in a row.
constexpr std::array<std::array<const char*, kRows>, 10> kGlyphs = {{
    {" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "},
    {"  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "},
    {" ### ", "#   #", "    #", "  ## ", " #   ", "#    ", "#####"},
    {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### "},
    {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
    {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
    {" ### ", "#    ", "#    ", "#### ", "#   #", "#   #", " ### "},
    {"#####", "    #", "   # ", "  #  ", "  #  ", " #   ", " #   "},
    {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
    {" ### ", "#   #", "#   #", " ####", "    #", "    #", " ### "},
}};

double between(Rng& rng, double low, double high) { return low + (high - low) * rng.uniform(); }

/// How much ink there is at a point of a glyph; between points it changes evenly.
double ink(int digit, double row, double column) {
  const int r = static_cast<int>(std::floor(row)), c = static_cast<int>(std::floor(column));
  const auto point = [digit](int y, int x) {
    if (y < 0 || y >= kRows || x < 0 || x >= kColumns) return 0.0;
    return kGlyphs[static_cast<std::size_t>(digit)][static_cast<std::size_t>(y)][x] == '#' ? 1.0
                                                                                           : 0.0;
  };
  const double down = row - r, right = column - c;
  return (1 - down) * ((1 - right) * point(r, c) + right * point(r, c + 1)) +
         down * ((1 - right) * point(r + 1, c) + right * point(r + 1, c + 1));
}

void append_image(int digit, Rng& rng, std::string& out) {
  const double scale = between(rng, 2.4, 3.4), slant = between(rng, -0.25, 0.25);
  const double y0 = kSide / 2.0 + between(rng, -2, 2), x0 = kSide / 2.0 + between(rng, -2, 2);
  const double dark = between(rng, 150, 255), noise = between(rng, 0, 40);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double row = (y - y0) / scale + (kRows - 1) / 2.0;
      const double column = (x - x0) / scale + slant * (y - y0) / scale + (kColumns - 1) / 2.0;
      const double value = dark * ink(digit, row, column) + noise * rng.uniform();
      out += static_cast<char>(static_cast<unsigned char>(std::min(value, 255.0)));
    }
  }
}

void append_number(std::uint32_t number, std::string& out) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

/// The files of a split: images and labels, with headers of big-endian numbers.
void append_split(const std::string& name, std::uint32_t count, std::vector<DataFile>& out) {
  Rng rng(1, "digits " + name);
  std::string images, labels;
  for (const std::uint32_t number : {0x803u, count, std::uint32_t{kSide}, std::uint32_t{kSide}})
    append_number(number, images);
  for (const std::uint32_t number : {0x801u, count}) append_number(number, labels);
  for (std::uint32_t i = 0; i < count; ++i) {
    const int digit = static_cast<int>(rng.below(10));
    labels += static_cast<char>(digit);
    append_image(digit, rng, images);
  }
  out.push_back({name + "-images-idx3-ubyte", std::move(images)});
  out.push_back({name + "-labels-idx1-ubyte", std::move(labels)});
}

}  // namespace

std::vector<DataFile> make_digits() {
  std::vector<DataFile> out;
  append_split("train", 6000, out);
  append_split("t10k", 1000, out);
  return out;
}

}  // namespace stormo::cli
