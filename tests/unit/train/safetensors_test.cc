#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A new file with these tensors, as checkpoints are written.
Result<checkpoint::FileDigest> write_file(const std::string& path, const TensorMap& tensors,
                                          const std::map<std::string, std::string>& metadata = {}) {
  checkpoint::SafetensorsHeader header{.entries = {}, .metadata = metadata};
  TensorMap values;
  for (const auto& [name, tensor] : tensors) {
    STORMO_ASSIGN_OR_RETURN(torch::Tensor t, plain_values(name, tensor));
    header.entries.push_back(
        {.name = name, .dtype = safetensors_name(t.scalar_type()), .shape = t.sizes().vec()});
    values.emplace(name, std::move(t));
  }
  const auto write = [&](const checkpoint::SafetensorsEntry& e, checkpoint::FileWriter& file) {
    const torch::Tensor& t = values.at(e.name);
    return file.write(t.const_data_ptr(), static_cast<std::size_t>(t.nbytes()));
  };
  return checkpoint::write_safetensors_file(path, header, write);
}

class SafetensorsTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write_bytes(const std::string& bytes) {
    std::ofstream(path("raw"), std::ios::binary | std::ios::trunc) << bytes;
    return path("raw");
  }

  const TemporaryFolder own_ = TemporaryFolder::create("safetensors").take_or_throw();
  const fs::path& folder_ = own_.path();
};

std::string file_of(const std::string& json, const std::string& data) {
  const std::uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + data;
}

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool same(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

TensorMap every_kind_of_tensor() {
  TensorMap tensors;
  for (const auto type : {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32,
                          torch::kInt64, torch::kFloat16, torch::kBFloat16, torch::kFloat32,
                          torch::kFloat64, torch::kComplexFloat, torch::kUInt16, torch::kUInt32,
                          torch::kUInt64, torch::kFloat8_e5m2, torch::kFloat8_e4m3fn}) {
    tensors[std::string("t.") + c10::toString(type)] =
        torch::arange(6).remainder(2).reshape({2, 3}).to(type);
  }
  tensors["scalar"] = torch::tensor(2.5);
  tensors["empty"] = torch::empty({0, 4});
  tensors["transposed"] = torch::arange(12).reshape({3, 4}).t();
  tensors["strided"] = torch::arange(20).slice(0, 0, 20, 3);
  tensors["with grad"] = torch::ones({2}, torch::requires_grad());
  return tensors;
}

TEST_F(SafetensorsTest, RoundTripsEveryKindOfTensor) {
  const TensorMap tensors = every_kind_of_tensor();
  const auto written = write_file(path("all"), tensors, {{"format", "pt"}});
  ASSERT_TRUE(written.ok()) << written.status().to_string();
  EXPECT_EQ(written->bytes, fs::file_size(path("all")));
  EXPECT_EQ(*written, *checkpoint::digest_file(path("all")));
  const auto read = read_safetensors(path("all"));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ(read->size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(tensor, read->at(name))) << name;
}

TEST_F(SafetensorsTest, NoTensorsAreAFileToo) {
  ASSERT_TRUE(write_file(path("none"), {}).ok());
  const auto read = read_safetensors(path("none"));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(read->empty());
}

TEST_F(SafetensorsTest, WritesTheBytesOfTheFormat) {
  const TensorMap tensors = {{"b", torch::tensor({1.0F})},
                             {"a", torch::tensor({2.0F})},
                             {"z", torch::tensor({3.0}, torch::kFloat64)},
                             {"c", torch::tensor({7}, torch::kUInt8)}};
  ASSERT_TRUE(write_file(path("f"), tensors, {{"format", "pt"}}).ok());
  // Widest first, then by name; the header is padded to a multiple of 8.
  std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},)"
      R"("c":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  const double z = 3;
  const float a = 2, b = 1;
  std::string data(17, '\0');
  std::memcpy(data.data(), &z, 8);
  std::memcpy(data.data() + 8, &a, 4);
  std::memcpy(data.data() + 12, &b, 4);
  data[16] = 7;
  EXPECT_EQ(content(path("f")), file_of(json, data));
}

TEST_F(SafetensorsTest, RefusesToWriteWhatTheFormatCannotHold) {
  EXPECT_EQ(write_file(path("x"), {{"s", torch::eye(2).to_sparse()}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(write_file(path("x"), {{"u", torch::Tensor()}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(write_file(path("x"), {{"\xff", torch::ones(1)}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(SafetensorsTest, RefusesEveryKindOfDamage) {
  const std::string data(8, '\1');
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& at) {
    return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + at + "}";
  };
  const std::string whole = entry("F32", "[2]", "[0,8]");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "too short"},
      {"1234567", "too short"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "longer than 16 MiB"},
      {file_of("{}", "").substr(0, 9), "cut short"},
      {file_of("[]", ""), "does not begin with '{'"},
      {file_of(" {}", ""), "does not begin with '{'"},
      {file_of("", ""), "does not begin with '{'"},
      {file_of("{\"a\":" + whole, data), "no valid JSON"},
      {file_of("{\"a\":" + whole + "}x", data), "no valid JSON"},
      {file_of("{\"a\":" + whole + ",\"a\":" + whole + "}", data), "given twice"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", data), "given twice"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", data), "needs dtype, shape"},
      {file_of("{\"a\":{\"code\":1}}", data), "unknown field"},
      {file_of("{\"a\":1}", data), "has no place"},
      {file_of("{\"a\":[1]}", data), "has no place"},
      {file_of("{\"a\":{\"dtype\":{}}}", data), "has no place"},
      {file_of("{\"a\":{\"shape\":[[1]]}}", data), "has no place"},
      {file_of("{\"__metadata__\":{\"a\":1}}", ""), "has no place"},
      {file_of("{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", ""), "given twice"},
      {file_of("{\"a\":" + entry("F33", "[2]", "[0,8]") + "}", data), "unknown dtype"},
      {file_of("{\"a\":" + entry("F32", "[-2]", "[0,8]") + "}", data), "negative"},
      {file_of("{\"a\":" + entry("F32", "[2.0]", "[0,8]") + "}", data), "whole number"},
      {file_of("{\"a\":" + entry("F32", "[3]", "[0,8]") + "}", data), "need 12 bytes"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[8,0]") + "}", data), "end before they begin"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[0]") + "}", data), "two numbers"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[0,8,8]") + "}", data), "two numbers"},
      {file_of("{\"a\":" + entry("F32", "[4294967296,4294967296,4]", "[0,8]") + "}", data),
       "overflow"},
      {file_of("{\"a\":" + entry("F32", "[0,9223372036854775807,4]", "[0,0]") + "}", ""),
       "overflow"},
      {file_of("{\"a\":" + entry("F32", "[9223372036854775808]", "[0,8]") + "}", data),
       "out of range"},
      {file_of("{\"a\":" + whole + "}", data + "x"), "belong to nothing"},
      {file_of("{\"a\":" + whole + "}", data.substr(1)), "cut short"},
      {file_of("{\"a\":" + entry("U8", "[4]", "[4,8]") + "}", data), "hole"},
      {file_of(
           "{\"a\":" + entry("U8", "[5]", "[0,5]") + ",\"b\":" + entry("U8", "[4]", "[4,8]") + "}",
           data),
       "overlap"},
      {file_of("{\"a\":" + entry("BOOL", "[1]", "[0,1]") + "}", "\2"), "neither 0 nor 1"},
  };
  for (const auto& [bytes, reason] : cases) {
    const auto read = read_safetensors(write_bytes(bytes));
    EXPECT_EQ(read.status().code(), Code::kCorrupt) << reason;
    EXPECT_THAT(read.status().message(), HasSubstr(reason));
    EXPECT_THAT(read.status().message(), HasSubstr(path("raw")));
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(read_safetensors(path("absent")).status().code(), Code::kNotFound);
  EXPECT_EQ(read_safetensors(folder_).status().code(), Code::kCorrupt);
  fs::create_symlink(write_bytes(file_of("{}", "")), path("link"));
  EXPECT_EQ(read_safetensors(path("link")).status().code(), Code::kCorrupt);
}

TEST_F(SafetensorsTest, MutatedFilesAreReadOrRefusedAndNeverCrash) {
  TensorMap tensors = every_kind_of_tensor();
  ASSERT_TRUE(write_file(path("seed"), tensors, {{"format", "pt"}}).ok());
  const std::string seed = content(path("seed"));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, seed.data(), 8);
  Rng rng(1, "safetensors mutations");
  int refused = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string bytes = seed;
    for (std::uint64_t k = 0; k <= rng.below(3); ++k) {
      // Mostly in the header, where the decisions are made.
      const std::size_t at =
          rng.below(8) == 0 ? rng.below(bytes.size()) : rng.below(8 + header_bytes);
      switch (rng.below(4)) {
        case 0: bytes[at] = static_cast<char>(rng.next_u32()); break;
        case 1: bytes[at] = "0123456789[]{},:\""[rng.below(17)]; break;
        case 2: bytes.erase(at, 1 + rng.below(9)); break;
        default: bytes.insert(at, 1 + rng.below(5), "09,[{\""[rng.below(6)]); break;
      }
    }
    // Parsed in memory: the file form is only 16 more bytes of bookkeeping.
    std::uint64_t length = 0;
    if (bytes.size() < 8) continue;
    std::memcpy(&length, bytes.data(), 8);
    const std::uint64_t json_bytes = std::min<std::uint64_t>(length, bytes.size() - 8);
    const auto header = checkpoint::parse_safetensors_header(
        std::string_view(bytes).substr(8, json_bytes), bytes.size() - 8 - json_bytes);
    refused += header.ok() ? 0 : 1;
    if (i % 50 == 0) static_cast<void>(read_safetensors(write_bytes(bytes)).ok());
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace stormo::train
