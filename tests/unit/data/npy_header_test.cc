#include <stormo/base/npy_header.h>

#include <gmock/gmock.h>

#include "mutate.h"
#include "npy_bytes.h"

namespace stormo::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<NpyHeader> parse(const std::string& file) {
  return parse_npy_header(std::as_bytes(std::span(file)), file.size());
}

Status status(std::string_view dictionary, std::size_t bytes) {
  return parse(npy_bytes(dictionary, std::string(bytes, 'x'))).status();
}

TEST(NpyHeader, ReadsAllVersions) {
  for (const int version : {1, 2, 3}) {
    const std::string file =
        npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
                  std::string(48, 'x'), version);
    const auto header = parse(file);
    ASSERT_TRUE(header.ok()) << header.status().to_string();
    EXPECT_EQ(header->dtype, "f4");
    EXPECT_THAT(header->shape, ElementsAre(3, 4));
    EXPECT_EQ(header->begin + 48, file.size());
  }
}

TEST(NpyHeader, ReadsScalarsVectorsAndAnyOrderOfTheFields) {
  EXPECT_THAT(parse(npy_bytes("{'descr':'|u1','fortran_order':False,'shape':()}", "x"))->shape,
              IsEmpty());
  EXPECT_THAT(parse(npy_bytes("{\"shape\": (2,), 'fortran_order': True, 'descr': '<i8'}",
                              std::string(16, 'x')))
                  ->shape,
              ElementsAre(2));
  EXPECT_THAT(
      parse(npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 5)}", ""))->shape,
      ElementsAre(0, 5));
}

TEST(NpyHeader, SaysWhatHelpsWithArraysItDoesNotRead) {
  EXPECT_THAT(status("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 4).message(),
              HasSubstr("newbyteorder"));
  EXPECT_THAT(status("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1)}", 4).message(),
              HasSubstr("ascontiguousarray"));
  for (const char* type : {"|b1", "<U3", "<c8", "|O", "<f16", "<u4", "f4", ""}) {
    const std::string text =
        "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': (1,)}";
    EXPECT_THAT(status(text, 4).message(), HasSubstr("astype")) << type;
  }
  EXPECT_THAT(
      status("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4).message(),
      HasSubstr("holds records"));
}

TEST(NpyHeader, RefusesWhatDoesNotAddUp) {
  for (const char* bad :
       {"", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4294967296, 2147483648)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"}) {
    EXPECT_EQ(status(bad, 4).code(), Code::kCorrupt) << bad;
  }
  EXPECT_THAT(status("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 7).message(),
              HasSubstr("holds 7 bytes of elements, its header promises 8"));
}

TEST(NpyHeader, RefusesEveryTruncationAndSurvivesMutations) {
  const std::string whole = npy_bytes("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }",
                                      std::string(12, 'x'));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(parse(whole.substr(0, length)).status().code(), Code::kCorrupt) << length;
  }
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    const std::string file = mutate(whole, seed);
    const auto header = parse(file);
    if (!header.ok()) continue;
    ++accepted;
    std::size_t bytes = static_cast<std::size_t>(header->dtype[1] - '0');
    for (const auto size : header->shape) bytes *= static_cast<std::size_t>(size);
    ASSERT_EQ(header->begin + bytes, file.size());
  }
  EXPECT_GT(accepted, 0);
}

TEST(NpyFront, EndsWhereTheElementsBegin) {
  const std::string dictionary = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}";
  for (const int version : {1, 2}) {
    for (const std::size_t padding : {0, 300, 40000}) {
      const std::string file = npy_bytes(dictionary + std::string(padding, ' '), "x", version);
      const auto bytes = std::as_bytes(std::span(file));
      EXPECT_EQ(npy_front_bytes(bytes.first(kNpyLengthBytes)), file.size() - 1);
      EXPECT_TRUE(parse_npy_header(bytes.first(file.size() - 1), file.size()).ok());
    }
  }
  for (const std::string& broken : {std::string(), std::string("x"), std::string(12, '\xff')}) {
    const std::size_t bytes = npy_front_bytes(std::as_bytes(std::span(broken)));
    EXPECT_GE(bytes, kNpyLengthBytes);
    EXPECT_LE(bytes, kMaxNpyFront);
  }
}

}  // namespace
}  // namespace stormo::data
