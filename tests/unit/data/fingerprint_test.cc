#include <stormo/data/fingerprint.h>

#include <algorithm>
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

TEST(Fingerprint, ReadsAtMost64MiBOfALargeRange) {
  std::vector<std::byte> content(Fingerprint::kMostBytes + (std::size_t{1} << 20));
  const std::uint64_t before = of(content);
  std::size_t seen = 0, tried = 0;
  for (const std::size_t i : {std::size_t{0}, content.size() - 1}) {
    content[i] = std::byte{1};
    EXPECT_NE(of(content), before) << i;
    content[i] = std::byte{0};
  }
  // The 1 MiB more than it reads lies in gaps of 4 KiB behind each block but the last.
  for (std::size_t i = std::size_t{256} << 10; tried < 4; i += content.size() / 5, ++tried) {
    std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(i), std::size_t{512} << 10,
                std::byte{1});
    seen += of(content) != before ? 1 : 0;
    std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(i), std::size_t{512} << 10,
                std::byte{0});
  }
  EXPECT_EQ(seen, tried) << "changes longer than a gap";
  content[(std::size_t{256} << 10) + 100] = std::byte{1};
  EXPECT_EQ(of(content), before) << "a change inside the first gap";
  content.pop_back();
  EXPECT_NE(of(content), before) << "another size";
}

TEST(Fingerprint, AFileCountsAsMemoryDoes) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1000}, Fingerprint::kMostBytes + 12345}) {
    std::vector<std::byte> content(bytes);
    for (std::size_t i = 0; i < bytes; i += 97) content[i] = static_cast<std::byte>(i % 251);
    Fingerprint read;
    read.add(bytes, [&](std::size_t offset, std::span<std::byte> out) {
      EXPECT_EQ(offset % 64, 0u);
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
