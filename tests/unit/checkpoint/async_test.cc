#include <gmock/gmock.h>

#include <stormo/checkpoint/async.h>
#include <stormo/checkpoint/folder.h>

#include "saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::HasSubstr;

using Async = FolderTest;

TEST_F(Async, SavesTheValuesOfBeginWhateverChangesAfterTheCopy) {
  constexpr int kSteps = 4;
  std::vector<std::vector<TestTensor>> states;
  for (int step = 0; step < kSteps; ++step) states.push_back(test_state(step));
  on_ranks(3, [&](comm::Communicator& world) {
    auto checkpoints = AsyncCheckpoint::create(world, folder_, 9).take_or_throw();
    std::vector<TestTensor> live = states[0];
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t i = 0; i < live.size(); ++i) live[i].bytes = states[step][i].bytes;
      const Status begun = checkpoints->begin(snapshot_of(live, step, world.rank(), 3));
      ASSERT_TRUE(begun.ok()) << begun.to_string();
      checkpoints->before_update();
      for (TestTensor& t : live) std::fill(t.bytes.begin(), t.bytes.end(), '\0');
    }
    EXPECT_EQ(checkpoints->finish().take_or_throw(), checkpoint_path(folder_, kSteps - 1));
    EXPECT_EQ(checkpoints->finish().take_or_throw(), "");
    checkpoints->before_update();
  });
  for (int step = 0; step < kSteps; ++step)
    expect_holds(checkpoint_path(folder_, step), states[step]);
}

TEST_F(Async, OwnersKeepValuesAliveUntilTheyAreCopied) {
  const auto state = test_state(1);
  on_ranks(1, [&](comm::Communicator& world) {
    auto checkpoints = AsyncCheckpoint::create(world, folder_, 9).take_or_throw();
    Snapshot s = snapshot_of(state, 1);
    for (Piece& p : s.pieces) {
      const auto copy =
          std::make_shared<std::string>(static_cast<const char*>(p.data), bytes_of(p));
      p.data = copy->data();
      p.owner = copy;
    }
    ASSERT_TRUE(checkpoints->begin(std::move(s)).ok());
    ASSERT_TRUE(checkpoints->finish().ok());
  });
  expect_holds(checkpoint_path(folder_, 1), state);
}

TEST_F(Async, AFailureSurfacesAtTheNextSaveOnAllRanksAndTheOneAfterSucceeds) {
  const auto state = test_state(1);
  overwrite(folder_ / "blocked", "a file where the folder should be");
  on_ranks(2, [&](comm::Communicator& world) {
    auto checkpoints = AsyncCheckpoint::create(world, folder_ / "blocked", 9).take_or_throw();
    ASSERT_TRUE(checkpoints->begin(snapshot_of(state, 1, world.rank(), 2)).ok());
    checkpoints->before_update();
    while (!checkpoints->failed()) std::this_thread::yield();
    EXPECT_EQ(checkpoints->last_saved(), "");
    const Status failed = checkpoints->begin(snapshot_of(state, 2, world.rank(), 2));
    EXPECT_FALSE(checkpoints->failed());
    EXPECT_THAT(failed.message(), HasSubstr("blocked"));
    ASSERT_TRUE(world.barrier().ok());
    if (world.rank() == 0) fs::remove(folder_ / "blocked");
    ASSERT_TRUE(world.barrier().ok());
    ASSERT_TRUE(checkpoints->begin(snapshot_of(state, 3, world.rank(), 2)).ok());
    EXPECT_TRUE(checkpoints->finish().ok());
    EXPECT_EQ(checkpoints->last_saved(), checkpoint_path(folder_ / "blocked", 3));
  });
  EXPECT_EQ(newest_checkpoint(folder_ / "blocked").take_or_throw(),
            checkpoint_path(folder_ / "blocked", 3));
}

TEST_F(Async, ASnapshotThatCouldNotBeMadeFailsOnAllRanks) {
  const auto state = test_state(1);
  on_ranks(2, [&](comm::Communicator& world) {
    auto checkpoints = AsyncCheckpoint::create(world, folder_, 9).take_or_throw();
    Result<Snapshot> mine = snapshot_of(state, 1, world.rank(), 2);
    if (world.rank() == 1) mine = invalid_argument("a sparse tensor");
    ASSERT_TRUE(checkpoints->begin(std::move(mine)).ok());
    checkpoints->before_update();
    EXPECT_THAT(checkpoints->finish().status().message(), HasSubstr("a sparse tensor"));
  });
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace stormo::checkpoint
