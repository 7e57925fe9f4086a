// Whose checkpoint a folder's is: runs that follow each other in one folder, and runs that meet
// there.
#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/file/run_lock.h>
#include <stormo/checkpoint/folder.h>

#include "saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class Run : public FolderTest {
 protected:
  Result<std::string> save_as(const RunIdentity& run, std::int64_t step, int keep = 9) {
    return save(folder_, step, keep, /*large=*/6, run);
  }
  std::string newest() { return newest_checkpoint(folder_).take_or_throw(); }
  RunIdentity begun(bool overwrite = false) {
    return begin_run(folder_, overwrite).take_or_throw();
  }
};

TEST_F(Run, StaysTheSameOverSavesAndResumes) {
  const RunIdentity run = begun();
  EXPECT_THAT(run.id, testing::MatchesRegex("[0-9a-f]{16}"));
  ASSERT_TRUE(save_as(run, 1).ok());
  const Manifest saved = check_checkpoint(newest(), true).take_or_throw();
  EXPECT_EQ(saved.run, run);
  EXPECT_EQ(continued_run(saved.run), run);
  EXPECT_NE(new_run().id, run.id);
}

TEST_F(Run, KeepsASecondOneOutWhileItLasts) {
  std::optional<RunLock> first(std::in_place), second(std::in_place);
  ASSERT_TRUE(first->take(folder_, Deadline::after({})).ok());
  const Status refused = second->take(folder_, Deadline::after(std::chrono::milliseconds(1)));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("another run"), HasSubstr("another folder")));
  EXPECT_THAT(names_in(folder_), testing::IsEmpty());
  // One that is about to end is waited for.
  std::jthread ending([&first] { first.reset(); });
  second.emplace();
  EXPECT_TRUE(second->take(folder_, Deadline::never()).ok());
}

TEST_F(Run, AFreshOneIsRefusedInAUsedFolderWithTheRemedies) {
  EXPECT_TRUE(begin_run(folder_ / "absent", false).ok());
  ASSERT_TRUE(save_as(begun(), 6).ok());
  const auto before = names_in(folder_);
  const Status status = begin_run(folder_, false).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("step-00000006"), HasSubstr("--resume"),
                                      HasSubstr("--checkpoint DIR"), HasSubstr("--overwrite")));
  EXPECT_EQ(names_in(folder_), before);
  // Half a checkpoint may be all that is left of something.
  fs::remove(folder_ / "step-00000006" / "manifest.json");
  EXPECT_FALSE(begin_run(folder_, false).ok());
}

TEST_F(Run, KeepsItsBestBesideTheNewest) {
  const RunIdentity run = begun();
  EXPECT_EQ(best_checkpoint(folder_).status().code(), Code::kNotFound);
  for (const int step : {1, 2, 3, 4, 5}) {
    const std::string path = save_as(run, step, /*keep=*/1).take_or_throw();
    if (step == 2 || step == 4) {
      ASSERT_TRUE(point_best(path).ok());
    }
    EXPECT_EQ(newest(), path);
  }
  EXPECT_EQ(best_checkpoint(folder_).take_or_throw(), folder_ / "step-00000004");
  EXPECT_THAT(names_in(folder_),
              UnorderedElementsAre("step-00000004", "step-00000005", "best", "latest"));
  // a run that replaces it replaces its best one too
  ASSERT_TRUE(save_as(begun(/*overwrite=*/true), 1).ok());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000001", "best", "latest"));
  EXPECT_EQ(best_checkpoint(folder_).status().code(), Code::kNotFound);
  // a link that leads elsewhere names nothing
  fs::remove(folder_ / "best");
  fs::create_directory_symlink("../step-00000001", folder_ / "best");
  EXPECT_EQ(best_checkpoint(folder_).status().code(), Code::kNotFound);
}

// The step of the run before is higher, at every moment of the change.
TEST_F(Run, OneThatOverwritesReplacesTheOlderWithItsFirstCheckpointAndNotBefore) {
  const RunIdentity older = begun();
  for (const int step : {3, 4}) ASSERT_TRUE(save_as(older, step).ok());
  const RunIdentity newer = begun(/*overwrite=*/true);
  EXPECT_EQ(newest(), folder_ / "step-00000004");  // an end here has lost nothing
  const fs::path copies = folder_ / "copies";
  fs::create_directories(copies);
  for (const char* name : {"step-00000003", "step-00000004"}) {
    fs::copy(folder_ / name, copies / name);
  }
  ASSERT_TRUE(save_as(newer, 3).ok());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000003", "latest", "copies"));

  // Killed after the new one got its name and before the older ones were removed.
  fs::copy(copies / "step-00000004", folder_ / "step-00000004");
  EXPECT_EQ(newest(), folder_ / "step-00000003");
  EXPECT_EQ(find_checkpoint(folder_).take_or_throw(), folder_ / "step-00000003");
  const RunIdentity resumed = continued_run(check_checkpoint(newest(), true).take_or_throw().run);
  ASSERT_TRUE(save_as(resumed, 5).ok());
  EXPECT_THAT(names_in(folder_),
              UnorderedElementsAre("step-00000003", "step-00000005", "latest", "copies"));
  EXPECT_EQ(begun(/*overwrite=*/true).replaces, std::vector<std::string>{newer.id});
}

TEST_F(Run, TwoThatWriteIntoOneFolderAreToldApartAndLoseNothing) {
  const RunIdentity first = begun(), second = begun();  // both before either has saved
  ASSERT_TRUE(save_as(first, 2).ok());
  const std::string manifest = content(folder_ / "step-00000002" / "manifest.json");
  for (const int step : {1, 2, 3}) {
    const Status status = save_as(second, step, /*keep=*/1).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("belongs to run " + first.id),
                                        HasSubstr(second.id), HasSubstr("give each its own")));
  }
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000002", "latest"));
  EXPECT_EQ(content(folder_ / "step-00000002" / "manifest.json"), manifest);
}

TEST_F(Run, CheckpointsOfSeveralInOneFolderAreNotGuessedAmong) {
  const RunIdentity one = new_run(), two = new_run();
  ASSERT_TRUE(save_as(one, 9).ok());
  ASSERT_TRUE(save(folder_ / "other", 4, 9, 6, two).ok());
  fs::rename(folder_ / "other" / "step-00000004", folder_ / "step-00000004");
  const Status status = newest_checkpoint(folder_).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("step-00000009 of run " + one.id),
                                      HasSubstr("step-00000004 of run " + two.id)));
  EXPECT_EQ(find_checkpoint(folder_ / "step-00000004").take_or_throw(), folder_ / "step-00000004");
}

TEST_F(Run, RetentionCountsItsOwnCheckpointsOnly) {
  const RunIdentity older = begun();
  for (const int step : {1, 2}) ASSERT_TRUE(save_as(older, step).ok());
  RunIdentity beside = new_run();
  retire_old_checkpoints(folder_, 1, "", beside);
  EXPECT_EQ(names_in(folder_).size(), 3u);
  retire_old_checkpoints(folder_, 1, folder_ / "step-00000002", older);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000002", "latest"));
}

TEST_F(Run, OneWithoutIdentityLoadsAndGoesOnWithANewOne) {
  ASSERT_TRUE(save_as({}, 1).ok());
  std::string text = content(folder_ / "step-00000001" / "manifest.json");
  const std::size_t at = text.find(",\n\"run\":");
  ASSERT_NE(at, std::string::npos);
  text.erase(at, text.find('\n', at + 2) - at - 1);  // as older programs wrote it
  text.erase(text.rfind(",\n\"manifest_xxh3_64\""));
  Hasher hasher;
  hasher.add(text.data(), text.size());
  overwrite(folder_ / "step-00000001" / "manifest.json",
            text + ",\n\"manifest_xxh3_64\":\"" + to_hex(hasher.digest()) + "\"\n}\n");

  const Manifest old = check_checkpoint(newest(), true).take_or_throw();
  EXPECT_EQ(old.run, RunIdentity());
  EXPECT_FALSE(begin_run(folder_, false).ok());
  const RunIdentity run = continued_run(old.run);
  EXPECT_NE(run.id, "");
  ASSERT_TRUE(save_as(run, 2).ok());
  EXPECT_EQ(newest(), folder_ / "step-00000002");
  EXPECT_FALSE(fs::exists(folder_ / "step-00000001"));
}

TEST_F(Run, AnImportBeginsOneThatATrainingContinues) {
  ASSERT_TRUE(save_as(begun(), 1).ok());
  ASSERT_TRUE(export_checkpoint(newest(), folder_ / "m.safetensors", false).ok());
  const std::string imported =
      import_checkpoint(folder_ / "m.safetensors", folder_ / "new").take_or_throw();
  const RunIdentity run = check_checkpoint(imported, true).take_or_throw().run;
  EXPECT_NE(run.id, "");
  EXPECT_TRUE(save(folder_ / "new", 5, 1, 6, continued_run(run)).ok());
  EXPECT_EQ(newest_checkpoint(folder_ / "new").take_or_throw(), folder_ / "new" / "step-00000005");
}

TEST_F(Run, AnIdentityThatCannotBeReadIsNoReasonToDelete) {
  const RunIdentity run = begun();
  ASSERT_TRUE(save_as(run, 1).ok());
  overwrite(folder_ / "step-00000001" / "manifest.json", "{\"format\":\"stormo-check");
  for (const int step : {2, 3}) ASSERT_TRUE(save_as(run, step, /*keep=*/1).ok());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("step-00000001", "step-00000003", "latest"));
  const Status status = begin_run(folder_, /*overwrite=*/true).status();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("step-00000001"), HasSubstr("move it away")));
}

TEST_F(Run, HostileIdentitiesAreRefused) {
  const fs::path path = save_as(begun(), 1).take_or_throw();
  const Manifest good = check_checkpoint(path, true).take_or_throw();
  for (const char* id : {"../../etc/passwd", "0123456789abcdeg", "0123456789abcde", "\x1b[2J"}) {
    Manifest m = good;
    m.run.id = id;
    EXPECT_EQ(parse_manifest(format_manifest(m)).status().code(), Code::kCorrupt) << id;
    m.run = {good.run.id, {id}};
    EXPECT_EQ(parse_manifest(format_manifest(m)).status().code(), Code::kCorrupt) << id;
  }
  Manifest m = good;
  m.run.replaces.assign(1001, good.run.id);
  EXPECT_EQ(parse_manifest(format_manifest(m)).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace stormo::checkpoint
