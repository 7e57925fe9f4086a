#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <stormo/checkpoint/folder.h>

#include "saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

using Folder = FolderTest;
constexpr const char* kShard = "shard-00000.safetensors";

TEST_F(Folder, KeepsTheNewestOnesAndPointsToTheLast) {
  for (const int step : {1, 2, 10, 9}) ASSERT_TRUE(save(folder_, step, 2).ok());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000009", "step-00000010", "latest"));
  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), folder_ / "step-00000010");
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "step-00000009");
  expect_holds(folder_ / "latest", test_state(9));
  fs::remove(folder_ / "latest");
  EXPECT_EQ(find_checkpoint(folder_).take_or_throw(), folder_ / "step-00000010");
  EXPECT_EQ(find_checkpoint(folder_ / "step-00000009").take_or_throw(), folder_ / "step-00000009");
}

TEST_F(Folder, ALinkThatAKilledSaveHasLeftIsReplaced) {
  ASSERT_TRUE(save(folder_, 4).ok());
  fs::create_symlink("step-00000004", folder_ / ".latest-new");
  ASSERT_TRUE(save(folder_, 5).ok());
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "step-00000005");
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000004", "step-00000005", "latest"));
}

TEST_F(Folder, SomethingElseWithTheNameOfTheLinkStays) {
  for (const bool is_folder : {true, false}) {
    const fs::path folder = folder_ / (is_folder ? "folder" : "file");
    fs::create_directories(is_folder ? folder / "latest" : folder);
    if (!is_folder) std::ofstream(folder / "latest") << "of another program";
    EXPECT_THAT(link_warning(folder), AllOf(HasSubstr("latest is a"), HasSubstr("not a link")));
    EXPECT_EQ(save(folder, 4).take_or_throw(), folder / "step-00000004");
    EXPECT_FALSE(fs::is_symlink(folder / "latest"));
    EXPECT_EQ(newest_checkpoint(folder).take_or_throw(), folder / "step-00000004");
    fs::remove(folder / "latest");
    EXPECT_EQ(link_warning(folder), "");
    ASSERT_TRUE(save(folder, 5).ok());
    EXPECT_EQ(fs::read_symlink(folder / "latest"), "step-00000005");
    EXPECT_EQ(link_warning(folder), "");
  }
}

TEST_F(Folder, SavingAStepAgainReplacesIt) {
  ASSERT_TRUE(save(folder_, 4).ok());
  const auto other = test_state(5);
  on_ranks(1, [&](comm::Communicator& world) {
    ASSERT_TRUE(save_checkpoint(world, folder_, snapshot_of(other, 4), 2).ok());
  });
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000004", "latest"));
  expect_holds(folder_ / "step-00000004", other);
}

TEST_F(Folder, NoCheckpointIsNotFound) {
  EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kNotFound);
  EXPECT_EQ(newest_checkpoint(folder_ / "absent").status().code(), Code::kNotFound);
  fs::create_directories(folder_ / "step-00000001");
  fs::create_directories(folder_ / "step-x");
  EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kNotFound);
}

// What a crash leaves behind at every point of a save: files come in this order, the folder gets
// its final name only when all are complete.
TEST_F(Folder, ACrashAtAnyPointOfASaveLeavesTheOlderOne) {
  const fs::path older = save(folder_, 1, 9, 6).take_or_throw();
  const fs::path whole = save(folder_, 2, 9, 6).take_or_throw();
  const std::vector<std::string> order = {kShard, "manifest.json"};
  int states = 0;
  for (std::size_t done = 0; done < order.size(); ++done) {
    const std::string partial = content(whole / order[done]);
    for (std::size_t bytes = 0; bytes <= partial.size(); bytes += 1 + partial.size() / 7) {
      const fs::path torn = folder_ / "torn";
      const fs::path staging = torn / ".staging-2-0123456789abcdef";
      fs::create_directories(staging);
      fs::copy(older, torn / "step-00000001");
      for (std::size_t f = 0; f < done; ++f) fs::copy(whole / order[f], staging / order[f]);
      overwrite(staging / order[done], partial.substr(0, bytes));
      EXPECT_EQ(newest_checkpoint(torn).take_or_throw(), torn / "step-00000001");
      // The next save tidies up and succeeds.
      ASSERT_TRUE(save(torn, 2, 9, 6).ok());
      EXPECT_FALSE(fs::exists(staging));
      EXPECT_EQ(newest_checkpoint(torn).take_or_throw(), torn / "step-00000002");
      fs::remove_all(torn);
      ++states;
    }
  }
  EXPECT_GE(states, 14);
}

TEST_F(Folder, WithoutAManifestAFolderIsNoCheckpoint) {
  const std::string older = save(folder_, 1).take_or_throw();
  fs::remove(fs::path(save(folder_, 2).take_or_throw()) / "manifest.json");
  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), older);
}

TEST_F(Folder, MissingOrTruncatedFilesAreNamedWithTheOlderOneAsRemedy) {
  const std::string older = save(folder_, 1, 9, 6).take_or_throw();
  for (const char* file : {kShard, "manifest.json"}) {
    const fs::path newer = save(folder_, 2, 9, 6).take_or_throw();
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

TEST_F(Folder, LivingRunsKeepTheirStagingFolders) {
  const fs::path staging = folder_ / ".staging-5-0123456789abcdef";
  fs::create_directories(staging);
  const int lock = ::open(staging.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  ASSERT_TRUE(save(folder_, 1).ok());
  EXPECT_TRUE(fs::exists(staging));
  ::close(lock);
  ASSERT_TRUE(save(folder_, 2).ok());
  EXPECT_FALSE(fs::exists(staging));
}

TEST_F(Folder, TheUmaskSaysWhoMayRead) {
  const auto mode = [](const fs::path& path) {
    return static_cast<int>(fs::status(path).permissions());
  };
  const mode_t before = ::umask(0);
  for (const int mask : {0077, 0022, 0002}) {
    ::umask(static_cast<mode_t>(mask));
    const fs::path folder = folder_ / std::to_string(mask) / "run";
    const fs::path path = save(folder, 1, 9, 6).take_or_throw();
    EXPECT_EQ(mode(path / kShard), 0666 & ~mask);
    EXPECT_EQ(mode(path / "manifest.json"), 0666 & ~mask);
    for (const fs::path& p : {path, folder, folder.parent_path()}) {
      EXPECT_EQ(mode(p), 0777 & ~mask) << p;
    }
  }
  ::umask(before);
}

TEST_F(Folder, ALinkThatCannotBeMovedIsAFailureAndTheCheckpointIsThere) {
  ASSERT_TRUE(save(folder_, 1).ok());
  fs::create_directories(folder_ / ".latest-new" / "of somebody else");
  const Status status = save(folder_, 2, /*keep=*/1).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("step-00000002 is saved"), HasSubstr("latest")));
  EXPECT_THAT(names_in(folder_),
              UnorderedElementsAre("step-00000001", "step-00000002", "latest", ".latest-new"));
  EXPECT_EQ(newest_checkpoint(folder_).take_or_throw(), folder_ / "step-00000002");
}

TEST_F(Folder, ProbeFindsAnUnwritableFolder) {
  EXPECT_TRUE(probe_checkpoint_directory(folder_ / "new" / "nested").ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "new" / "nested"));
  overwrite(folder_ / "file", "x");
  const Status status = probe_checkpoint_directory(folder_ / "file" / "below");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("checkpoint.directory=DIR"));
}

}  // namespace
}  // namespace stormo::checkpoint
