#include <stormo/data/fingerprint.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace stormo::data {
namespace {

std::uint64_t of(const std::vector<std::byte>& content) {
  Fingerprint fingerprint;
  fingerprint.add(content);
  return fingerprint.value();
}

TEST(Fingerprint, EveryByteOfASmallRangeCounts) {
  std::vector<std::byte> content(1000);
  const std::uint64_t before = of(content);
  EXPECT_EQ(of(content), before);
  for (const std::size_t i : {0u, 1u, 500u, 999u}) {
    content[i] = std::byte{1};
    EXPECT_NE(of(content), before) << i;
    content[i] = std::byte{0};
  }
  content.emplace_back();
  EXPECT_NE(of(content), before);
}

TEST(Fingerprint, EveryBlockOfALargeRangeCounts) {
  std::vector<std::byte> content(std::size_t{65} << 20);
  const std::uint64_t before = of(content);
  content[(std::size_t{256} << 10) + 100] = std::byte{1};
  EXPECT_NE(of(content), before);
}

/// Zeros that are read, but for some ones.
struct Zeros {
  std::size_t bytes = 0, ones_at = 0, ones = 0;
  std::size_t read = 0, most_at_once = 0;

  std::uint64_t fingerprint() {
    Fingerprint out;
    read = 0;
    out.add(bytes, [this](std::size_t offset, std::span<std::byte> to) {
      EXPECT_EQ(offset % 64, 0u);
      EXPECT_LE(offset + to.size(), bytes);
      std::memset(to.data(), 0, to.size());
      const std::size_t begin = std::clamp(ones_at, offset, offset + to.size());
      const std::size_t end = std::clamp(ones_at + ones, offset, offset + to.size());
      std::fill(to.begin() + static_cast<std::ptrdiff_t>(begin - offset),
                to.begin() + static_cast<std::ptrdiff_t>(end - offset), std::byte{1});
      read += to.size();
      most_at_once = std::max(most_at_once, to.size());
    });
    return out.value();
  }
};

TEST(Fingerprint, ReadsAtMost1GiBOfAFile) {
  // gaps of 4 KiB behind each block but the last
  Zeros file{.bytes = Fingerprint::kMostBytes + Fingerprint::kBlocks * 4096};
  const std::uint64_t before = file.fingerprint();
  EXPECT_LE(file.read, Fingerprint::kMostBytes + 64);
  EXPECT_LE(file.most_at_once, (std::size_t{256} << 10) + 64);
  const auto is_seen = [&](std::size_t at, std::size_t ones) {
    file.ones_at = at;
    file.ones = ones;
    return file.fingerprint() != before;
  };
  EXPECT_TRUE(is_seen(0, 1));
  EXPECT_TRUE(is_seen(file.bytes - 1, 1));
  EXPECT_TRUE(is_seen(file.bytes / 5, 5000)) << "longer than a gap";
  EXPECT_FALSE(is_seen((std::size_t{256} << 10) + 100, 1)) << "inside the first gap";
  ++file.bytes;
  EXPECT_TRUE(is_seen(0, 0)) << "another size";
}

TEST(Fingerprint, AFileCountsAsMemoryDoes) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1000}, (std::size_t{65} << 20) + 123}) {
    std::vector<std::byte> content(bytes);
    for (std::size_t i = 0; i < bytes; i += 97) content[i] = static_cast<std::byte>(i % 251);
    Fingerprint read;
    read.add(bytes, [&](std::size_t offset, std::span<std::byte> out) {
      std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    });
    EXPECT_EQ(read.value(), of(content)) << bytes;
  }
}

TEST(Fingerprint, PartsDoNotRunIntoEachOther) {
  Fingerprint one, other;
  one.add(std::string_view("ab"));
  one.add(std::string_view("c"));
  other.add(std::string_view("a"));
  other.add(std::string_view("bc"));
  EXPECT_NE(one.value(), other.value());
}

}  // namespace
}  // namespace stormo::data
