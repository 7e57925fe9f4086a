#include <stormo/strads/npy_values.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <stormo/base/temporary_folder.h>

namespace stormo::strads {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NpyValuesTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }
  /// An array of two elements.
  std::string file(const std::string& dtype, const std::string& elements) const {
    std::string header = "{'descr': '<" + dtype + "', 'fortran_order': False, 'shape': (2,), }";
    header.append(117 - header.size(), ' ');
    std::ofstream(path(dtype), std::ios::binary)
        << "\x93NUMPY\x01" << '\0' << static_cast<char>(118) << '\0' << header << '\n'
        << elements;
    return path(dtype);
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("npy-values").take_or_throw();
};

TEST_F(NpyValuesTest, WhatIsWrittenIsReadAgain) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{6}, {2, 3}, {1, 2, 3}, {0}}) {
    std::vector<double> values{1, -2.5, 1e300, 0, 5, 1e-300};
    if (shape[0] == 0) values.clear();
    throw_if_error(write_npy(path("a.npy"), shape, values));
    const NpyValues read = read_npy(path("a.npy")).take_or_throw();
    EXPECT_EQ(read.shape, shape);
    EXPECT_EQ(read_npy_shape(path("a.npy"), shape.size()).take_or_throw(), shape);
    EXPECT_EQ(read.values, values);
  }
}

TEST_F(NpyValuesTest, ConvertsNumbers) {
  const auto bytes = [](auto a, auto b) {
    const std::array both{a, b};
    return std::string(reinterpret_cast<const char*>(both.data()), sizeof(both));
  };
  EXPECT_THAT(read_npy(file("f4", bytes(0.5F, -3.F))).take_or_throw().values, ElementsAre(0.5, -3));
  EXPECT_THAT(read_npy(file("i4", bytes(7, -1))).take_or_throw().values, ElementsAre(7, -1));
  EXPECT_THAT(
      read_npy(file("i8", bytes(std::int64_t{1} << 40, std::int64_t{2}))).take_or_throw().values,
      ElementsAre(static_cast<double>(std::int64_t{1} << 40), 2));
}

TEST_F(NpyValuesTest, SaysWhatIsWrongWithWhichFile) {
  const auto wrong = [](const std::string& name) { return read_npy(name).status().message(); };
  EXPECT_THAT(wrong(path("none.npy")), HasSubstr("none.npy"));
  EXPECT_THAT(wrong(path("")), HasSubstr("is a folder"));
  EXPECT_THAT(wrong(file("i1", "ab")), HasSubstr("type i1; save a.astype('float64')"));
  EXPECT_THAT(read_npy_shape(file("f8", std::string(16, '0')), 2).status().message(),
              HasSubstr("f8' has 1 dimensions, not 2"));
  EXPECT_EQ(read_npy_shape(path("i1"), 1).status().message(), wrong(path("i1")));
  EXPECT_THAT(wrong(file("f8", "too short")), HasSubstr("f8' holds 9 bytes"));
  EXPECT_EQ(write_npy(path("none") + "/a.npy", {}, {}).code(), Code::kIo);
}

}  // namespace
}  // namespace stormo::strads
