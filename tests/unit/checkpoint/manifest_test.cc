#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>

#include "allocation_peak.h"
#include "saved.h"
#include "tests/sanitized.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::HasSubstr;

using ManifestFile = FolderTest;

Manifest example() {
  Manifest m{.name = "x", .step = 2, .samples = 4, .stormo_version = "1", .torch_version = "2"};
  m.files["a.safetensors"] = {.bytes = 29, .block_bytes = 16, .blocks = {6, 7}};
  m.tensors["w"] = {"F32",
                    {2, 3},
                    {{{{0, 0}, {1, 3}}, "a.safetensors", "w[0:1,0:3]"},
                     {{{1, 0}, {1, 3}}, "a.safetensors", "w[1:2,0:3]"}}};
  return m;
}

/// A JSON object without its closing brace, with a checksum that fits and the brace.
std::string with_checksum(const std::string& text) {
  Hasher hasher;
  hasher.add(text.data(), text.size());
  return text + ",\n\"manifest_xxh3_64\":\"" + to_hex(hasher.digest()) + "\"\n}\n";
}

/// The text of a manifest after a change to its JSON, with a checksum that fits.
std::string edited(const std::function<void(nlohmann::ordered_json&)>& change,
                   const Manifest& m = example()) {
  auto json = nlohmann::ordered_json::parse(format_manifest(m));
  json.erase("manifest_xxh3_64");
  change(json);
  std::string text = json.dump();
  text.pop_back();
  return with_checksum(text);
}

nlohmann::json small_file(int bytes) {
  return {{"bytes", bytes}, {"block_bytes", 32}, {"xxh3_64", to_hex(6)}};
}

TEST(Manifest, ReadsWhatItWrites) {
  EXPECT_EQ(parse_manifest(format_manifest(example())).take_or_throw(), example());
  EXPECT_EQ(parse_manifest(edited([](auto&) {})).take_or_throw(), example());
  EXPECT_TRUE(check_coverage(example()).ok());
}

TEST(Manifest, EveryChangedByteIsFound) {
  const std::string text = format_manifest(example());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_FALSE(parse_manifest(damaged).ok()) << "byte " << at;
    EXPECT_FALSE(parse_manifest(text.substr(0, at)).ok()) << "cut at " << at;
  }
}

TEST(Manifest, HostileTablesAreRefusedWithTheReason) {
  using Json = nlohmann::ordered_json;
  const auto refused = [](const std::function<void(Json&)>& change, const char* why) {
    const Status status = parse_manifest(edited(change)).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << why;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  const auto tensor = [](auto f) { return [f](Json& j) { f(j["tensors"][0]); }; };
  for (const char* name : {"../x", "/etc/passwd", "a/b", ".hidden", ""}) {
    refused([&](Json& j) { j["files"][name] = j["files"]["a.safetensors"]; }, "leads out");
    refused(tensor([&](Json& t) { t["boxes"][0]["file"] = name; }), "not listed");
  }
  refused([](Json& j) { j["files"]["a.safetensors"]["bytes"] = 1ull << 62; },
          "number of checksums");
  refused([](Json& j) { j["files"]["a.safetensors"]["block_bytes"] = 0; }, "no size");
  refused([](Json& j) { j["files"]["a.safetensors"]["block_bytes"] = 1; }, "number of checksums");
  refused([](Json& j) { j["files"] = Json::array({1}); }, "leads out");
  refused([](Json& j) { j["files"]["a.safetensors"]["bytes"] = -1; }, "no size");
  refused([](Json& j) { j["files"]["a.safetensors"]["xxh3_64"] = std::string(32, 'g'); },
          "hexadec");
  refused([](Json& j) { j["files"] = Json::array(); }, "wrong type");
  refused([](Json& j) { j["step"] = -1; }, "missing or of the wrong type");
  refused([](Json& j) { j["step"] = 1ull << 63; }, "missing or of the wrong type");
  refused([](Json& j) { j.erase("recipe"); }, "missing or of the wrong type");
  refused([](Json& j) { j["tensors"].push_back(j["tensors"][0]); }, "given twice");
  refused([](Json& j) { j["tensors"][0] = 3; }, "without name");
  refused(tensor([](Json& t) { t["dtype"] = "F31"; }), "unknown dtype");
  refused(tensor([](Json& t) { t["shape"] = {1ll << 40, 1ll << 40}; }), "overflows");
  refused(tensor([](Json& t) { t["shape"] = {1ll << 61, 3}; }), "overflows");
  refused(tensor([](Json& t) { t["shape"] = {-2, 3}; }), "without name, dtype, shape");
  refused(tensor([](Json& t) { t["shape"] = std::vector<int>(65, 1); }), "without name, dtype, sh");
  refused(tensor([](Json& t) { t["boxes"][0]["offsets"] = {2, 0}; }), "does not lie in");
  refused(tensor([](Json& t) { t["boxes"][0]["sizes"] = {INT64_MAX, INT64_MAX}; }), "does not lie");
  refused(tensor([](Json& t) { t["boxes"][0]["sizes"] = {1}; }), "does not lie in");
  refused(tensor([](Json& t) { t["boxes"][0].erase("key"); }), "a box without");
}

// 24 bytes are stated, the file has 23: nothing may be allocated for the rest.
TEST(Manifest, MoreValuesThanTheFilesHoldAreRefused) {
  EXPECT_TRUE(parse_manifest(edited([](auto&) {})).ok());
  const Status status = parse_manifest(edited([](auto& j) {
                          j["files"]["a.safetensors"] = small_file(23);
                        })).status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("tensor \"w\": more values than a.safetensors has room"));
}

/// A manifest of so many small tensors, each in one box.
std::string long_manifest(int tensors) {
  Manifest m;
  m.files["a"] = {.bytes = 1u << 20, .block_bytes = 1u << 20, .blocks = {1}};
  for (int i = 0; i < tensors; ++i) {
    const std::string name = "layer." + std::to_string(i) + ".weight";
    m.tensors[name] = {"F32", {2}, {{{{0}, {2}}, "a", name}}};
  }
  return format_manifest(m);
}

double seconds_to_parse(const std::string& text) {
  const auto now = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  EXPECT_TRUE(parse_manifest(text).ok());
  return now() - start;
}

// Sixteen times the text: 256 times the time where every tensor looks at all before it.
TEST(Manifest, TimeGrowsWithTheLengthAndNoFaster) {
  constexpr int kTensors = kSanitized ? 500 : 2000;
  const std::string small = long_manifest(kTensors), large = long_manifest(16 * kTensors);
  const double unit = seconds_to_parse(small);
  EXPECT_LT(seconds_to_parse(large), 80 * unit);
}

// The checksum fits: anybody can compute it.
TEST(Manifest, MemoryDoesNotMultiplyTheText) {
  constexpr std::size_t kText = (kSanitized ? 1u : 20u) << 20;
  std::string lists;
  while (lists.size() < kText) lists += "[],";
  lists += "[]";
  for (const std::string& place :
       {R"("recipe":{"a":[)" + lists + "]}", R"("unknown":[)" + lists + "]",
        R"("tensors":[)" + lists + "]", R"("files":{"a":[)" + lists + "]}"}) {
    const std::string text = with_checksum(R"({"format":"stormo-checkpoint","schema":2,)" + place);
    const AllocationPeak peak;
    EXPECT_EQ(parse_manifest(text).status().code(), Code::kCorrupt);
    EXPECT_LT(peak.bytes(), (60u << 20) + 5 * kText) << place.substr(0, 20);
  }
  // Without one that fits nothing is parsed at all.
  const std::string text = R"({"format":"stormo-checkpoint","schema":2,"recipe":[)" + lists + "]}";
  const AllocationPeak peak;
  EXPECT_EQ(parse_manifest(text).status().code(), Code::kCorrupt);
  EXPECT_LT(peak.bytes(), 1u << 20);
}

TEST(Manifest, TensorsThatAreNotCoveredOnceAreNamed) {
  for (const bool twice : {false, true}) {
    Manifest m = example();
    auto& boxes = m.tensors["w"].boxes;
    if (twice) boxes.push_back(boxes[0]);
    if (!twice) boxes.pop_back();
    EXPECT_THAT(check_coverage(m).message(), HasSubstr("tensor \"w\": its boxes do not cover"));
  }
}

TEST(Manifest, DeepJsonIsRefusedNotRecursedInto) {
  const std::string deep = R"({"format":)" + std::string(100000, '[');
  EXPECT_EQ(parse_manifest(deep).status().code(), Code::kCorrupt);
  const std::string closed =
      R"({"format":)" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_EQ(parse_manifest(closed).status().code(), Code::kCorrupt);
}

TEST_F(ManifestFile, StatesTheContract) {
  const fs::path path = save(folder_, 3).take_or_throw();
  const auto json = nlohmann::json::parse(content(path / "manifest.json"));
  EXPECT_EQ(json["format"], "stormo-checkpoint");
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["name"], "test");
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["samples"], 30);
  EXPECT_EQ(json["state"]["seed"], 5);
  EXPECT_EQ(json["recipe"]["model"]["kind"], "mlp");
  EXPECT_EQ(json["torch_version"], "2.13");
  EXPECT_EQ(json["files"]["shard-00000.safetensors"]["bytes"],
            fs::file_size(path / "shard-00000.safetensors"));
  EXPECT_EQ(json["tensors"].size(), test_state(3).size());
  EXPECT_EQ(json["tensors"][0]["boxes"][0]["key"], "bias");
}

TEST_F(ManifestFile, ForeignAndNewerOnesAreRefusedByName) {
  const fs::path path = save(folder_, 1).take_or_throw();
  overwrite(path / "manifest.json", R"({"step":1,"files":{}})");
  EXPECT_THAT(newest_checkpoint(folder_).status().message(), HasSubstr("not written by Stormo"));
  overwrite(path / "manifest.json", R"({"format":"stormo-checkpoint","schema":3})");
  EXPECT_THAT(newest_checkpoint(folder_).status().message(), HasSubstr("schema 3"));
}

TEST_F(ManifestFile, EveryFlippedBitIsFoundWhereItIsRead) {
  const fs::path path = save(folder_, 1).take_or_throw();
  const auto state = test_state(1);
  const fs::path shard = path / "shard-00000.safetensors";
  const std::string text = content(shard);
  ASSERT_GT(text.size(), FileDigest::kBlockBytes);
  for (std::size_t at = 0; at < text.size(); at += 1 + text.size() / 40) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    overwrite(shard, damaged);
    const Status deep = check_checkpoint(path, true).status();
    EXPECT_EQ(deep.code(), Code::kCorrupt) << "byte " << at;
    EXPECT_THAT(deep.message(), HasSubstr(shard.string()));
    auto reader = CheckpointReader::open(path).take_or_throw();
    bool found = false;
    for (const TestTensor& t : state) {
      std::string values(t.bytes.size(), 0);
      const Status read = reader.read(t.name, 0, t.elements(), values.data());
      found = found || !read.ok();
      EXPECT_TRUE(!read.ok() || values == t.bytes) << t.name << ", byte " << at;
    }
    EXPECT_TRUE(found) << "byte " << at;
  }
}

TEST_F(ManifestFile, TheManifestDoesNotOverruleTheFiles) {
  const fs::path path = save(folder_, 1, 9, 6).take_or_throw();
  const Manifest good = check_checkpoint(path, true).take_or_throw();
  const auto refused = [&](const std::function<void(Manifest&)>& change) {
    Manifest m = good;
    change(m);
    overwrite(path / "manifest.json", format_manifest(m));
    auto reader = CheckpointReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.status().to_string();
    std::vector<char> values(1 << 20);
    const Status status = reader->read("bias", 0, 7, values.data());
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("that the manifest states"));
  };
  refused([](Manifest& m) { m.tensors["bias"].boxes[0].key = "none"; });
  refused([](Manifest& m) { m.tensors["bias"].dtype = "I32"; });
  refused([](Manifest& m) {
    m.tensors["bias"].shape = {8};
    m.tensors["bias"].boxes[0].box.sizes = {8};
  });
}

TEST_F(ManifestFile, ReadsAreBounded) {
  const std::string path = save(folder_, 1, 9, 6).take_or_throw();
  auto reader = CheckpointReader::open(path).take_or_throw();
  float values[8];
  EXPECT_EQ(reader.read("nothing", 0, 1, values).code(), Code::kNotFound);
  EXPECT_EQ(reader.read("bias", 0, 8, values).code(), Code::kInvalidArgument);
  EXPECT_EQ(reader.read("bias", -1, 2, values).code(), Code::kInvalidArgument);
  EXPECT_EQ(reader.read("bias", 3, 2, values).code(), Code::kInvalidArgument);
  EXPECT_TRUE(reader.read("bias", 7, 7, values).ok());
}

// Damaged manifests with checksums that fit, so that what stands behind the checksum is reached.
TEST_F(ManifestFile, MutatedOnesAreReadOrRefusedAndNeverCrash) {
  const fs::path path = save(folder_, 1, 9, 6).take_or_throw();
  const std::string text = content(path / "manifest.json");
  const std::string body = text.substr(0, text.rfind(",\n\"manifest_xxh3_64\""));
  const auto state = test_state(1, 6);
  Rng rng(1, "manifest mutations");
  int refused = 0;
  std::vector<char> values(1 << 16);
  constexpr int kMutations = kSanitized ? 300 : 3000;  // more of them: tests/fuzz
  for (int i = 0; i < kMutations; ++i) {
    std::string bytes = body;
    for (std::uint64_t k = 0; k <= rng.below(3); ++k) {
      const std::size_t at = rng.below(bytes.size());
      switch (rng.below(4)) {
        case 0: bytes[at] = static_cast<char>(rng.below(256)); break;
        case 1: bytes[at] = "0123456789[]{},:\""[rng.below(17)]; break;
        case 2: bytes.erase(at, 1 + rng.below(9)); break;
        default: bytes.insert(at, 1 + rng.below(5), "09,[{\""[rng.below(6)]); break;
      }
    }
    overwrite(path / "manifest.json", with_checksum(bytes));
    auto reader = CheckpointReader::open(path);
    refused += reader.ok() ? 0 : 1;
    if (!reader.ok()) continue;
    for (const TestTensor& t : state) {
      if (t.bytes.size() > values.size()) continue;
      const auto saved = reader->manifest().tensors.find(t.name);
      if (saved == reader->manifest().tensors.end() || saved->second.shape != t.shape) continue;
      const Status read = reader->read(t.name, 0, t.elements(), values.data());
      refused += read.ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, kMutations / 2);
}

// A checkpoint of schema 1, written here as docs/checkpoints.md described it.
TEST_F(ManifestFile, SchemaOneStillLoads) {
  const auto state = test_state(1);
  const fs::path path = folder_ / "step-00000007";
  fs::create_directories(path);
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const bool optimizer : {false, true}) {
    SafetensorsHeader header;
    std::map<std::string, const TestTensor*> tensors;
    for (const TestTensor& t : state) {
      if (t.name.starts_with("optimizer.") != optimizer) continue;
      header.entries.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape});
      tensors[t.name] = &t;
    }
    const std::string name = optimizer ? "optimizer.safetensors" : "model.safetensors";
    ASSERT_TRUE(write_safetensors_file(path / name, header,
                                       [&](const SafetensorsEntry& e, FileWriter& file) {
                                         return file.write(tensors.at(e.name)->bytes);
                                       })
                    .ok());
    const std::string all = content(path / name);
    Hasher hasher;
    hasher.add(all.data(), all.size());
    files[name] = {{"bytes", all.size()}, {"xxh3_64", to_hex(hasher.digest())}};
  }
  nlohmann::ordered_json json = {{"format", "stormo-checkpoint"},
                                 {"schema", 1},
                                 {"name", "old"},
                                 {"step", 7},
                                 {"samples", 70},
                                 {"weights_hash", "0"},
                                 {"stormo_version", "0.1"},
                                 {"torch_version", "2.13"},
                                 {"files", files},
                                 {"recipe", {{"a", 1}}}};
  const std::string text = json.dump();
  Hasher hasher;
  hasher.add(text.data(), text.size());
  json["manifest_xxh3_64"] = to_hex(hasher.digest());
  overwrite(path / "manifest.json", json.dump(2) + "\n");

  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), path);
  const Manifest m = check_checkpoint(path, true).take_or_throw();
  EXPECT_EQ(m.step, 7);
  EXPECT_EQ(m.samples, 70);
  EXPECT_EQ(m.name, "old");
  expect_holds(path, state, 3);

  std::string damaged = content(path / "model.safetensors");
  damaged[damaged.size() / 2] ^= 1;
  overwrite(path / "model.safetensors", damaged);
  EXPECT_EQ(CheckpointReader::open(path).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace stormo::checkpoint
