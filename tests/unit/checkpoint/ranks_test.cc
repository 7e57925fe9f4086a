#include <gmock/gmock.h>

#include <stormo/checkpoint/folder.h>

#include "saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

class Ranks : public FolderTest {
 protected:
  std::vector<Result<std::string>> save_on(int ranks, const std::vector<TestTensor>& state) {
    std::vector<Result<std::string>> outcomes(static_cast<std::size_t>(ranks),
                                              Status(Code::kException, "not run"));
    on_ranks(ranks, [&](comm::Communicator& world) {
      outcomes[static_cast<std::size_t>(world.rank())] =
          save_checkpoint(world, folder_, snapshot_of(state, ranks, world.rank(), ranks), 9);
    });
    return outcomes;
  }
};

TEST_F(Ranks, AnyNumberReadsWhatAnyNumberWrote) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const auto state = test_state(ranks);
    for (const auto& outcome : save_on(ranks, state)) {
      ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
      EXPECT_EQ(*outcome, checkpoint_path(folder_, ranks));
    }
    for (const int parts : {1, 2, 3, 5, 8}) {
      expect_holds(checkpoint_path(folder_, ranks), state, parts);
    }
  }
}

TEST_F(Ranks, EveryShardHoldsAnEvenPart) {
  ASSERT_TRUE(save_on(4, test_state(4)).front().ok());
  std::vector<std::uintmax_t> sizes;
  for (int r = 0; r < 4; ++r) {
    sizes.push_back(fs::file_size(folder_ / "step-00000004" /
                                  ("shard-0000" + std::to_string(r) + ".safetensors")));
  }
  EXPECT_LT(
      *std::max_element(sizes.begin(), sizes.end()) - *std::min_element(sizes.begin(), sizes.end()),
      4096u);  // headers
}

TEST_F(Ranks, ReadsOnlyTheFilesThatHoldWhatIsWanted) {
  const auto state = test_state(3);
  ASSERT_TRUE(save_on(3, state).front().ok());
  const std::string path = checkpoint_path(folder_, 3);
  auto reader = CheckpointReader::open(path).take_or_throw();
  std::vector<std::string> files;
  for (const SavedBox& box : reader.manifest().tensors.at("large.weight").boxes) {
    if (files.empty() || files.back() != box.file) files.push_back(box.file);
  }
  ASSERT_GE(files.size(), 2u);
  overwrite(fs::path(path) / files.back(),
            std::string(fs::file_size(fs::path(path) / files.back()), 'x'));
  float value = 0;
  EXPECT_TRUE(reader.read("large.weight", 0, 1, &value).ok());
  EXPECT_EQ(reader.read("large.weight", 300 * 999 - 1, 300 * 999, &value).code(), Code::kCorrupt);
}

TEST_F(Ranks, BoxesOfAnyKindAreRead) {
  // Columns, as tensor parallelism cuts them: written as tensors of their own, then described.
  const auto state = test_state(1, 6);
  const TestTensor& whole = state[4];
  ASSERT_EQ(whole.name, "large.weight");
  std::vector<TestTensor> columns;
  for (const std::int64_t begin : {0, 400}) {
    const std::int64_t width = begin == 0 ? 400 : 599;
    TestTensor part{"part" + std::to_string(begin), "F32", {6, width}, {}};
    for (std::int64_t row = 0; row < 6; ++row) {
      part.bytes += whole.bytes.substr(static_cast<std::size_t>(4 * (row * 999 + begin)),
                                       static_cast<std::size_t>(4 * width));
    }
    columns.push_back(std::move(part));
  }
  std::string path;
  on_ranks(1, [&](comm::Communicator& world) {
    path = save_checkpoint(world, folder_, snapshot_of(columns, 1), 1).take_or_throw();
  });
  Manifest m = check_checkpoint(path, true).take_or_throw();
  const std::string file = m.files.begin()->first;
  m.tensors = {{"large.weight",
                {"F32",
                 {6, 999},
                 {{{{0, 400}, {6, 599}}, file, "part400"}, {{{0, 0}, {6, 400}}, file, "part0"}}}}};
  overwrite(fs::path(path) / "manifest.json", format_manifest(m));
  for (const int parts : {1, 3, 11}) expect_holds(path, {whole}, parts);
}

TEST_F(Ranks, WhatIsMissingOrSavedTwiceIsFoundBeforeItIsPublished) {
  const auto state = test_state(1);
  for (const bool twice : {false, true}) {
    on_ranks(2, [&](comm::Communicator& world) {
      Snapshot s = snapshot_of(state, 1, world.rank(), 2);
      if (world.rank() == 1) {
        if (twice) s.pieces.push_back(whole_pieces(state)[0]);
        if (!twice) s.pieces.erase(s.pieces.begin());  // the rest of a tensor
      }
      const Status status = save_checkpoint(world, folder_, s, 9).status();
      EXPECT_THAT(status.message(), HasSubstr("do not cover it exactly once"));
    });
    EXPECT_EQ(newest_checkpoint(folder_).status().code(), Code::kNotFound);
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(Ranks, AFailureOfOneRankIsTheOutcomeOfAllAndTouchesNothing) {
  ASSERT_TRUE(save(folder_, 1).ok());
  const auto state = test_state(2);
  on_ranks(3, [&](comm::Communicator& world) {
    Result<Snapshot> mine = snapshot_of(state, 2, world.rank(), 3);
    if (world.rank() == 1) mine = Status(Code::kExhausted, "no memory for this test");
    const Status status = save_checkpoint(world, folder_, mine, 1).status();
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("no memory for this test")));
  });
  EXPECT_THAT(names_in(folder_), testing::UnorderedElementsAre("step-00000001", "latest"));
  expect_holds(checkpoint_path(folder_, 1), test_state(1));
}

// Two names of two folders, as on hosts without a common file system.
TEST_F(Ranks, ARankThatSeesAnotherFolderIsNamed) {
  const auto state = test_state(1);
  on_ranks(2, [&](comm::Communicator& world) {
    const fs::path own = folder_ / std::to_string(world.rank());
    const Status status =
        save_checkpoint(world, own, snapshot_of(state, 1, world.rank(), 2), 9).status();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("does not see"),
                                        HasSubstr("shared file system")));
  });
}

TEST_F(Ranks, PiecesThatCannotBeAreRefused) {
  const auto state = test_state(1);
  const auto refused = [&](const auto& change, const char* why) {
    on_ranks(1, [&](comm::Communicator& world) {
      Snapshot s = snapshot_of(state, 1);
      change(s.pieces[0]);
      const Status status = save_checkpoint(world, folder_, s, 9).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(why));
    });
  };
  refused([](Piece& p) { p.dtype = "F31"; }, "F31");
  refused([](Piece& p) { p.end = 8; }, "do not lie in its shape");
  refused([](Piece& p) { p.begin = 8; }, "do not lie in its shape");
  refused([](Piece& p) { p.name = "__metadata__"; }, "cannot name a tensor");
  refused([](Piece& p) { p.name = "half"; }, "two shapes or dtypes");
  refused([](Piece& p) { p.name = "\xff"; }, "UTF-8");
}

}  // namespace
}  // namespace stormo::checkpoint
