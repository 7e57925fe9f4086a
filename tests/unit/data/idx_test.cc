#include <stormo/data/image/idx.h>

#include <gmock/gmock.h>

#include <algorithm>

#include "idx_bytes.h"
#include "scratch.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string pattern(std::size_t n) {
  std::string values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(static_cast<char>(i % 251));
  return values;
}

Status status_of(const std::string& path, int num_dims = 3) {
  return read_idx(path, num_dims).status();
}

class Idx : public ::testing::Test {
 protected:
  Scratch scratch_;
};

TEST_F(Idx, ReadsPlainAndCompressedFilesOfEveryShape) {
  const std::vector<std::vector<std::uint32_t>> shapes = {
      {1}, {7}, {0}, {2, 3}, {3, 28, 28}, {5, 1, 2}, {0, 28, 28}, {2000, 41, 31}};
  for (const auto& dims : shapes) {
    std::size_t count = 1;
    for (const auto d : dims) count *= d;
    const std::string values = pattern(count);
    const std::string plain = idx_bytes(dims, values);
    for (const std::string& bytes : {plain, gzip(plain)}) {
      const auto array = read_idx(scratch_.write("x", bytes), static_cast<int>(dims.size()));
      ASSERT_TRUE(array.ok()) << array.status().to_string();
      EXPECT_EQ(array->dims, std::vector<std::int64_t>(dims.begin(), dims.end()));
      EXPECT_EQ(std::string(array->values.begin(), array->values.end()), values);
    }
  }
}

TEST_F(Idx, RefusesEveryTruncation) {
  const std::string plain = idx_bytes({4, 5, 3}, pattern(60));
  for (std::size_t length = 0; length < plain.size(); ++length) {
    const std::string path = scratch_.write("short", plain.substr(0, length));
    const Status status = status_of(path);
    EXPECT_EQ(status.code(), Code::kCorrupt) << length;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr("fetch the file again")));
  }
  const std::string packed = gzip(plain);
  for (std::size_t length = 0; length < packed.size(); ++length) {
    const Status status = status_of(scratch_.write("short.gz", packed.substr(0, length)));
    EXPECT_EQ(status.code(), Code::kCorrupt) << length;
  }
}

TEST_F(Idx, SaysHowMuchIsMissing) {
  const std::string path = scratch_.write("x", idx_bytes({10, 2, 2}, pattern(33)));
  EXPECT_THAT(status_of(path).message(), HasSubstr("is truncated: 33 of 40 bytes of data"));
}

TEST_F(Idx, RefusesTrailingBytes) {
  const std::string bytes = idx_bytes({2, 2, 2}, pattern(9));
  for (const std::string& file : {bytes, gzip(bytes)}) {
    const Status status = status_of(scratch_.write("x", file));
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("has bytes behind its 8 bytes of data"));
  }
}

TEST_F(Idx, RefusesAWrongMagic) {
  const std::string good = idx_bytes({2, 2, 2}, pattern(8));
  std::string bad = good;
  bad[0] = '\x89';
  EXPECT_THAT(status_of(scratch_.write("a", bad)).message(), HasSubstr("is not an IDX file"));
  bad = good;
  bad[2] = '\x0d';
  EXPECT_THAT(status_of(scratch_.write("b", bad)).message(),
              HasSubstr("holds elements of type 0x0d"));
  EXPECT_THAT(status_of(scratch_.write("c", good), 1).message(),
              HasSubstr("has 3 dimensions, expected 1"));
  EXPECT_EQ(status_of(scratch_.write("d", "<!DOCTYPE html>")).code(), Code::kCorrupt);
}

TEST_F(Idx, RefusesDamagedCompression) {
  const std::string packed = gzip(idx_bytes({20, 5, 3}, pattern(300)));
  const auto whole = read_idx(scratch_.write("w.gz", packed), 3);
  ASSERT_TRUE(whole.ok());
  std::size_t harmless = 0;
  for (std::size_t at = 0; at < packed.size(); ++at) {
    std::string bad = packed;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    const auto array = read_idx(scratch_.write("x.gz", bad), 3);
    // time, flags and system of the packer (bytes 4..9) and the padding bits of the last block
    // carry nothing: then the data is whole; all other bytes count
    if (array.ok()) {
      ++harmless;
      EXPECT_TRUE(std::equal(array->values.begin(), array->values.end(), whole->values.begin(),
                             whole->values.end()))
          << at;
    } else {
      EXPECT_EQ(array.status().code(), Code::kCorrupt) << at;
    }
  }
  EXPECT_LE(harmless, 7u);
  EXPECT_EQ(status_of(scratch_.write("y.gz", "\x1f\x8b\x08garbage garbage")).code(),
            Code::kCorrupt);
}

TEST_F(Idx, ReservesNoMemoryForAbsurdClaims) {
  const std::string huge = idx_bytes({0xffffffff, 0x7fffffff, 1}, pattern(10));
  EXPECT_THAT(status_of(scratch_.write("x", huge)).message(), HasSubstr("is truncated: 10 of"));
  const std::string overflow = idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, "");
  EXPECT_THAT(status_of(scratch_.write("y", overflow)).message(),
              HasSubstr("more elements than any file can hold"));
}

TEST_F(Idx, NamesAMissingFile) {
  const Status status = status_of(scratch_.path("nowhere"));
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("nowhere"));
}

TEST_F(Idx, RefusesADirectory) { EXPECT_FALSE(status_of(scratch_.path()).ok()); }

}  // namespace
}  // namespace stormo::data
