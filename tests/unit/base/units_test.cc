#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include <stormo/base/units.h>

namespace stormo {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(Bytes, AreWrittenWithBinaryPrefixes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 40), "5 TiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 50), "5120 TiB");
}

TEST(Bytes, AreReadInEverySpelling) {
  for (const char* text : {"65536", "64K", "64k", "64KB", "64KiB", "64 KiB", "65536B"}) {
    const Result<std::uint64_t> bytes = parse_bytes(text);
    ASSERT_TRUE(bytes.ok()) << text;
    EXPECT_EQ(*bytes, 65536u) << text;
  }
  EXPECT_EQ(*parse_bytes("1.5M"), 1572864u);
  EXPECT_EQ(*parse_bytes("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(*parse_bytes("0"), 0u);
}

TEST(Bytes, WhatIsNoSizeIsRefusedWithARemedy) {
  for (const char* text : {"", "x", "-1", "4Q", "4KiBx", "1e30", "inf", "nan", "9999999T"}) {
    const Result<std::uint64_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(bytes.status().code(), Code::kInvalidArgument);
    EXPECT_NE(bytes.status().message().find("write 4096"), std::string::npos);
  }
}

TEST(Bytes, SurviveWritingAndReading) {
  for (const std::uint64_t n : {0ull, 1ull, 1000ull, 1024ull, 1536ull, 1048576ull, 3221225472ull})
    EXPECT_EQ(*parse_bytes(format_bytes(n)), n);
}

TEST(Durations, AreWrittenInTheUnitThatFits) {
  EXPECT_EQ(format_duration(nanoseconds(400)), "0.4 us");
  EXPECT_EQ(format_duration(microseconds(12300)), "12.3 ms");
  EXPECT_EQ(format_duration(milliseconds(2500)), "2.5 s");
  EXPECT_EQ(format_duration(seconds(125)), "2 min 5 s");
  EXPECT_EQ(format_duration(hours(2) + minutes(3)), "2 h 3 min");
}

TEST(Durations, AreRead) {
  EXPECT_EQ(*parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(*parse_duration("5s"), seconds(5));
  EXPECT_EQ(*parse_duration("5"), seconds(5));
  EXPECT_EQ(*parse_duration("1.5s"), milliseconds(1500));
  EXPECT_EQ(*parse_duration("100us"), std::chrono::microseconds(100));
  EXPECT_EQ(*parse_duration("2min"), minutes(2));
  EXPECT_EQ(*parse_duration("1h"), hours(1));
}

TEST(Durations, WhatIsNoDurationIsRefused) {
  for (const char* text : {"", "soon", "-1s", "5 parsecs", "1e12s", "inf", "nan"})
    EXPECT_FALSE(parse_duration(text).ok()) << text;
}

/// Straight from the definition: three recursive choices, and a fourth for two swapped neighbours.
int naive_distance(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  const std::string a1 = a.substr(1), b1 = b.substr(1);
  const int same = naive_distance(a1, b1) + (a[0] != b[0]);
  int best = std::min({same, naive_distance(a1, b) + 1, naive_distance(a, b1) + 1});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0]) {
    best = std::min(best, naive_distance(a.substr(2), b.substr(2)) + 1);
  }
  return best;
}

TEST(EditDistance, EqualsItsDefinition) {
  const std::array<std::string, 8> words = {"", "a", "ab", "ba", "step", "steps", "spet", "lr"};
  for (const auto& a : words)
    for (const auto& b : words)
      EXPECT_EQ(edit_distance(a, b), naive_distance(a, b)) << a << " / " << b;
}

TEST(NearestMatch, SuggestsTheClosestAndOnlyIfClose) {
  const std::vector<std::string> keys = {"steps", "optimizer.lr", "global_batch"};
  EXPECT_EQ(nearest_match("step", keys), "steps");
  EXPECT_EQ(nearest_match("optimiser.lr", keys), "optimizer.lr");
  EXPECT_EQ(nearest_match("steps", keys), "steps");
  EXPECT_EQ(nearest_match("zzzzzzzz", keys), "");
  EXPECT_EQ(nearest_match("step", std::vector<std::string>{}), "");
}

}  // namespace
}  // namespace stormo
