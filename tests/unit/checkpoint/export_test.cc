#include <gmock/gmock.h>

#include <ctime>

#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/checkpoint/folder.h>

#include "saved.h"
#include "tests/sanitized.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::HasSubstr;

using Export = FolderTest;

/// The tensors of a safetensors file, by the header's own parser.
std::map<std::string, std::string> values_in(const fs::path& path) {
  const std::string bytes = content(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header =
      parse_safetensors_header(std::string_view(bytes).substr(8, length), bytes.size() - 8 - length)
          .take_or_throw();
  std::map<std::string, std::string> values;
  for (const SafetensorsEntry& e : header.entries) {
    values[e.name] = bytes.substr(8 + length + e.begin, e.end - e.begin);
  }
  return values;
}

// A document that keeps the order compares each name with all before it: minutes.
TEST(SafetensorsHeaderText, TimeGrowsWithTheNumberOfTensors) {
  constexpr std::uint64_t kTensors = kSanitized ? 20000 : 120000;
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    header.entries.push_back(
        {.name = "layer." + std::to_string(i) + ".weight", .dtype = "F32", .shape = {2, 3}});
  }
  const std::clock_t begin = std::clock();
  const std::string text = format_safetensors_header(header).take_or_throw();
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 20);
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(parse_safetensors_header(text, kTensors * 24).take_or_throw(), header);
  header.entries.resize(1);
  header.metadata = {{"note", std::string(kMaxSafetensorsHeaderBytes, 'n')}};
  EXPECT_THAT(format_safetensors_header(header).status().message(), HasSubstr("at most"));
}

TEST_F(Export, OneFileHoldsWholeTensorsWhoeverWroteThem) {
  const auto state = test_state(1, 1500);  // more than a portion
  on_ranks(3, [&](comm::Communicator& world) {
    ASSERT_TRUE(save_checkpoint(world, folder_, snapshot_of(state, 1, world.rank(), 3), 1).ok());
  });
  for (const bool optimizer : {false, true}) {
    const fs::path file = folder_ / (optimizer ? "all" : "model");
    const Status status = export_checkpoint(checkpoint_path(folder_, 1), file, optimizer);
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::map<std::string, std::string> wanted;
    for (const TestTensor& t : state) {
      if (optimizer || !t.name.starts_with("optimizer.")) wanted[t.name] = t.bytes;
    }
    EXPECT_EQ(values_in(file), wanted);
    EXPECT_THAT(export_checkpoint(checkpoint_path(folder_, 1), file, optimizer).message(),
                HasSubstr("exists already"));
  }
}

TEST_F(Export, ADamagedCheckpointLeavesNoFile) {
  const fs::path path = save(folder_, 1).take_or_throw();
  std::string damaged = content(path / "shard-00000.safetensors");
  damaged.back() ^= 1;
  overwrite(path / "shard-00000.safetensors", damaged);
  EXPECT_EQ(export_checkpoint(path, folder_ / "model", true).code(), Code::kCorrupt);
  EXPECT_FALSE(fs::exists(folder_ / "model"));
}

TEST_F(Export, ImportIsTheWayBack) {
  const std::string path = save(folder_ / "a", 1).take_or_throw();
  ASSERT_TRUE(export_checkpoint(path, folder_ / "file", true).ok());
  const auto imported = import_checkpoint(folder_ / "file", folder_ / "b");
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  expect_holds(*imported, test_state(1));
  EXPECT_EQ(check_checkpoint(*imported, true).take_or_throw().name, "");
  EXPECT_THAT(import_checkpoint(folder_ / "file", folder_ / "b").status().message(),
              HasSubstr("holds checkpoints"));
  EXPECT_THAT(import_checkpoint(folder_ / "none", folder_ / "c").status().message(),
              HasSubstr("does not exist"));
  overwrite(folder_ / "other", "no safetensors file");
  EXPECT_EQ(import_checkpoint(folder_ / "other", folder_ / "c").status().code(), Code::kCorrupt);
}

TEST_F(Export, ThePrefixOfPythonsWrapperGoes) {
  auto state = test_state(1, 6);
  for (TestTensor& t : state) t.name = "module." + t.name;
  std::string path;
  on_ranks(1, [&](comm::Communicator& world) {
    path = save_checkpoint(world, folder_ / "a", snapshot_of(state, 1), 1).take_or_throw();
  });
  ASSERT_TRUE(export_checkpoint(path, folder_ / "file", true).ok());
  const std::string imported = import_checkpoint(folder_ / "file", folder_ / "b").take_or_throw();
  expect_holds(imported, test_state(1, 6));
}

}  // namespace
}  // namespace stormo::checkpoint
