// What can happen to a process that writes checkpoints: kill -9 at any moment, a full disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include <stormo/checkpoint/async.h>
#include <stormo/checkpoint/folder.h>

#include "tests/long.h"
#include "tests/sanitized.h"
#include "tests/unit/checkpoint/saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::HasSubstr;

using Kill = FolderTest;
using FullDisk = FolderTest;

constexpr std::int64_t kRows = 60;  // of the large tensor: 240 KB

/// Saves step after step on two ranks, and writes a byte at the start of each save. Never returns.
[[noreturn]] void save_until_killed(const fs::path& folder, std::int64_t step, int pipe) {
  on_ranks(2, [&](comm::Communicator& world) {
    auto checkpoints = AsyncCheckpoint::create(world, folder, 2).take_or_throw();
    for (std::int64_t s = step;; ++s) {
      const auto state = test_state(s, kRows);
      if (world.rank() == 0 && ::write(pipe, "", 1) != 1) ::_exit(1);
      if (!checkpoints->begin(snapshot_of(state, s, world.rank(), 2)).ok()) ::_exit(1);
      checkpoints->before_update();
    }
  });
  ::_exit(1);
}

/// Waits for the byte of a save, then `delay` more, and kills the child; how it ended.
int kill_during_save(pid_t child, int pipe, std::chrono::microseconds delay, std::uint64_t saves) {
  char byte = 0;
  for (std::uint64_t i = 0; i < saves; ++i) {
    if (::read(pipe, &byte, 1) != 1) break;
  }
  const auto until = std::chrono::steady_clock::now() + delay;
  while (std::chrono::steady_clock::now() < until) {
  }
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_F(Kill, TheLatestCheckpointLoadsAfterAnyOfMany) {
  const int kills = is_long_form() ? 100 : kSanitized ? 12 : 30;
  Rng rng(5, "kills");
  std::int64_t newest = 0;
  int staging_left = 0;
  for (int kill = 0; kill < kills; ++kill) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) save_until_killed(folder_, newest + 1, pipe[1]);
    ::close(pipe[1]);
    ASSERT_EQ(kill_during_save(child, pipe[0], std::chrono::microseconds(rng.below(4000)),
                               1 + rng.below(3)),
              SIGKILL);
    ::close(pipe[0]);
    for (const std::string& name : names_in(folder_)) staging_left += name.starts_with(".staging-");

    const Result<std::string> path = newest_checkpoint(folder_);
    if (!path.ok() && newest == 0) continue;  // killed before the first one was published
    ASSERT_TRUE(path.ok()) << path.status().to_string();
    const auto reader = CheckpointReader::open(*path).take_or_throw();
    ASSERT_GE(reader.manifest().step, newest);
    newest = reader.manifest().step;
    expect_holds(*path, test_state(newest, kRows));
    if (!fs::exists(fs::symlink_status(folder_ / kLatest))) continue;  // between the two renames
    const auto pointed = CheckpointReader::open(folder_ / kLatest);
    ASSERT_TRUE(pointed.ok()) << pointed.status().to_string();
    expect_holds(folder_ / kLatest, test_state(pointed->manifest().step, kRows));
  }
  EXPECT_GT(newest, kills / 10);
  EXPECT_GT(staging_left, kills / 10) << "the kills did not fall into saves";
}

TEST_F(FullDisk, IsSaidAndWhatWasSavedAndWhatIsTrainedStayIntact) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", folder_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "root: needs the right to mount a small tmpfs";
  }
  const auto state = test_state(1, 100);  // 400 KB: two fit, three do not
  on_ranks(2, [&](comm::Communicator& world) {
    auto live = state;
    auto checkpoints = AsyncCheckpoint::create(world, folder_, 9).take_or_throw();
    for (std::int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(checkpoints->begin(snapshot_of(live, step, world.rank(), 2)).ok());
      checkpoints->before_update();
    }
    const Status failed = checkpoints->begin(snapshot_of(live, 4, world.rank(), 2));
    EXPECT_EQ(failed.code(), Code::kIo);
    EXPECT_THAT(failed.message(), testing::AllOf(HasSubstr("No space left on device"),
                                                 HasSubstr("rank "), HasSubstr("shard-0000")));
    for (std::size_t i = 0; i < live.size(); ++i) EXPECT_EQ(live[i].bytes, state[i].bytes);
    ASSERT_TRUE(world.barrier().ok());
    if (world.rank() == 0) {
      for (const std::int64_t step : {1, 2}) expect_holds(checkpoint_path(folder_, step), state);
      EXPECT_THAT(names_in(folder_),
                  testing::UnorderedElementsAre("step-00000001", "step-00000002", "latest"));
      fs::remove_all(checkpoint_path(folder_, 1));
    }
    ASSERT_TRUE(world.barrier().ok());
    ASSERT_TRUE(checkpoints->begin(snapshot_of(live, 4, world.rank(), 2)).ok());
    EXPECT_TRUE(checkpoints->finish().ok());
  });
  expect_holds(folder_ / kLatest, state);
  ::umount(folder_.c_str());
}

}  // namespace
}  // namespace stormo::checkpoint
