#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <stormo/base/temporary_folder.h>
#include <stormo/train/checkpoint.h>
#include <stormo/train/manifest.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class CheckpointTest : public testing::Test {
 protected:
  static Snapshot snapshot(std::int64_t step) {
    return {.model = {{"layer.weight", torch::full({2, 3}, static_cast<double>(step))},
                      {"layer.bias", torch::arange(2)}},
            .optimizer = {{"optimizer.momentum.layer.weight", torch::ones({2, 3})}},
            .step = step,
            .samples = 10 * step,
            .name = "test",
            .recipe_json = R"({"model":{"kind":"mlp"}})"};
  }
  std::string save(std::int64_t step, int keep = 9) {
    return save_checkpoint(folder_, snapshot(step), keep).take_or_throw();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_))
      found.push_back(entry.path().filename());
    return found;
  }

  const TemporaryFolder own_ = TemporaryFolder::create("checkpoint").take_or_throw();
  const fs::path& folder_ = own_.path();
};

void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(CheckpointTest, LoadsWhatWasSaved) {
  const std::string path = save(7);
  EXPECT_EQ(path, folder_ / "step-00000007");
  const Snapshot loaded = load_checkpoint(path).take_or_throw();
  const Snapshot saved = snapshot(7);
  EXPECT_EQ(loaded.step, 7);
  EXPECT_EQ(loaded.samples, 70);
  EXPECT_EQ(loaded.name, "test");
  EXPECT_EQ(loaded.recipe_json, saved.recipe_json);
  ASSERT_EQ(loaded.model.size(), 2u);
  EXPECT_TRUE(torch::equal(loaded.model.at("layer.weight"), saved.model.at("layer.weight")));
  EXPECT_TRUE(
      torch::equal(loaded.optimizer.at("optimizer.momentum.layer.weight"), torch::ones({2, 3})));
  EXPECT_EQ(weights_hash(loaded.model), weights_hash(saved.model));
}

TEST_F(CheckpointTest, ManifestStatesTheContract) {
  const auto json = nlohmann::json::parse(content(fs::path(save(3)) / "manifest.json"));
  EXPECT_EQ(json["format"], "stormo-checkpoint");
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["samples"], 30);
  EXPECT_EQ(json["recipe"]["model"]["kind"], "mlp");
  EXPECT_EQ(json["weights_hash"], weights_hash(snapshot(3).model));
  EXPECT_EQ(json["files"]["model.safetensors"]["bytes"],
            fs::file_size(folder_ / "step-00000003" / "model.safetensors"));
}

TEST_F(CheckpointTest, KeepsTheNewestOnes) {
  for (const int step : {1, 2, 10, 9}) save(step, 2);
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000009", "step-00000010"));
  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), folder_ / "step-00000010");
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(4);
  Snapshot other = snapshot(4);
  other.samples = 99;
  ASSERT_TRUE(save_checkpoint(folder_, other, 2).ok());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000004"));
  EXPECT_EQ(load_checkpoint(folder_ / "step-00000004").take_or_throw().samples, 99);
}

TEST_F(CheckpointTest, NoCheckpointIsNotFound) {
  EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kNotFound);
  EXPECT_EQ(newest_checkpoint(folder_ / "absent").status().code(), Code::kNotFound);
  fs::create_directories(folder_ / "step-00000001");
  fs::create_directories(folder_ / "step-x");
  EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kNotFound);
}

// What a crash leaves behind at every point of a save: files come in this order, the folder gets
// its final name only when all are complete.
TEST_F(CheckpointTest, ACrashAtAnyPointOfASaveLeavesTheOlderOne) {
  const std::string older = save(1);
  const fs::path whole = save(2);
  const std::vector<std::string> order = {"model.safetensors", "optimizer.safetensors",
                                          "manifest.json"};
  int states = 0;
  for (std::size_t done = 0; done < order.size(); ++done) {
    const std::string partial = content(whole / order[done]);
    for (std::size_t bytes = 0; bytes <= partial.size(); bytes += 1 + partial.size() / 5) {
      const fs::path torn = folder_ / "torn";
      fs::create_directories(torn / ".staging-2-0123456789abcdef");
      fs::copy(older, torn / "step-00000001");
      const fs::path staging = torn / ".staging-2-0123456789abcdef";
      for (std::size_t f = 0; f < done; ++f) fs::copy(whole / order[f], staging / order[f]);
      overwrite(staging / order[done], partial.substr(0, bytes));
      EXPECT_EQ(newest_checkpoint(torn).take_or_throw(), torn / "step-00000001");
      // The next save tidies up and succeeds.
      ASSERT_TRUE(save_checkpoint(torn, snapshot(2), 9).ok());
      EXPECT_FALSE(fs::exists(staging));
      EXPECT_EQ(newest_checkpoint(torn).take_or_throw(), torn / "step-00000002");
      fs::remove_all(torn);
      ++states;
    }
  }
  EXPECT_GE(states, 15);
}

TEST_F(CheckpointTest, WithoutAManifestAFolderIsNoCheckpoint) {
  const std::string older = save(1);
  const fs::path newer = save(2);
  fs::remove(newer / "manifest.json");
  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), older);
}

TEST_F(CheckpointTest, MissingOrTruncatedFilesAreNamedWithTheOlderOneAsRemedy) {
  const std::string older = save(1);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const fs::path newer = save(2);
    const std::string text = content(newer / file);
    for (const std::size_t bytes : {std::size_t{0}, text.size() / 2, text.size() - 2}) {
      overwrite(newer / file, text.substr(0, bytes));
      const Status status = newest_checkpoint(folder_).status();
      EXPECT_EQ(status.code(), Code::kCorrupt) << file << " " << bytes;
      EXPECT_THAT(status.message(), HasSubstr(file));
      EXPECT_THAT(status.message(), HasSubstr("continue from " + older));
    }
    if (std::string(file) == "manifest.json") continue;
    fs::remove(newer / file);
    EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kCorrupt) << file;
  }
}

TEST_F(CheckpointTest, EveryFlippedBitIsFound) {
  const fs::path path = save(1);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string text = content(path / file);
    for (std::size_t at = 0; at < text.size(); at += 1 + text.size() / 40) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      overwrite(path / file, damaged);
      const Status status = load_checkpoint(path).status();
      EXPECT_FALSE(status.ok()) << file << " byte " << at;
      EXPECT_THAT(status.message(), HasSubstr(path.string()));
    }
    overwrite(path / file, text);
  }
  EXPECT_TRUE(load_checkpoint(path).ok());
}

TEST_F(CheckpointTest, ForeignManifestsAreRefusedByName) {
  const fs::path path = save(1);
  overwrite(path / "manifest.json", R"({"step":1,"files":{}})");
  EXPECT_THAT(newest_checkpoint(folder_).status().message(), HasSubstr("not written by Stormo"));
  overwrite(path / "manifest.json", R"({"format":"stormo-checkpoint","schema":2})");
  EXPECT_THAT(newest_checkpoint(folder_).status().message(), HasSubstr("schema 2"));
}

TEST_F(CheckpointTest, LivingRunsKeepTheirStagingFolders) {
  const fs::path staging = folder_ / ".staging-5-0123456789abcdef";
  fs::create_directories(staging);
  const int lock = ::open(staging.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  save(1);
  EXPECT_TRUE(fs::exists(staging));
  ::close(lock);
  save(2);
  EXPECT_FALSE(fs::exists(staging));
}

TEST_F(CheckpointTest, ProbeFindsAnUnwritableFolder) {
  EXPECT_TRUE(probe_checkpoint_directory(folder_ / "new" / "nested").ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "new" / "nested"));
  overwrite(folder_ / "file", "x");
  const Status status = probe_checkpoint_directory(folder_ / "file" / "below");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("checkpoint.directory=DIR"));
}

TEST(WeightsHash, SeesNamesShapesDTypesAndBytes) {
  const torch::Tensor t = torch::arange(6, torch::kFloat32);
  const std::string base = weights_hash({{"a", t}});
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base, weights_hash({{"a", t.clone()}}));
  EXPECT_NE(base, weights_hash({{"b", t}}));
  EXPECT_NE(base, weights_hash({{"a", t.reshape({2, 3})}}));
  EXPECT_NE(base, weights_hash({{"a", t.view(torch::kInt32)}}));
  EXPECT_NE(base, weights_hash({{"a", t + 1}}));
  EXPECT_NE(weights_hash({}), base);
  EXPECT_EQ(weights_hash({{"a", torch::arange(6).reshape({2, 3}).t()}}),
            weights_hash({{"a", torch::arange(6).reshape({2, 3}).t().contiguous()}}));
}

TEST(NamedState, HoldsParametersAndBuffers) {
  torch::nn::BatchNorm1d norm(3);
  std::vector<std::string> found;
  for (const auto& [name, tensor] : named_state(*norm)) found.push_back(name);
  EXPECT_THAT(found, UnorderedElementsAre("weight", "bias", "running_mean", "running_var",
                                          "num_batches_tracked"));
}

TEST(Manifest, DeepJsonIsRefusedNotRecursedInto) {
  const std::string deep = R"({"format":)" + std::string(100000, '[');
  EXPECT_EQ(parse_manifest(deep).status().code(), Code::kCorrupt);
  const std::string closed =
      R"({"format":)" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_EQ(parse_manifest(closed).status().code(), Code::kCorrupt);
}

TEST(Manifest, FileNamesStayInsideTheCheckpoint) {
  for (const char* name : {"../x", "/etc/passwd", "a/b", ".hidden", ""}) {
    Manifest m;
    m.files[name] = {};
    EXPECT_EQ(parse_manifest(format_manifest(m)).status().code(), Code::kCorrupt) << name;
  }
  Manifest good{.name = "x", .step = 2, .samples = 4, .weights_hash = "h"};
  good.files["model.safetensors"] = {.bytes = 5, .xxh3 = 6};
  EXPECT_EQ(parse_manifest(format_manifest(good)).take_or_throw(), good);
}

}  // namespace
}  // namespace stormo::train
