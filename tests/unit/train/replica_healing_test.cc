#include <stormo/train/agreement/minority.h>
#include <stormo/train/agreement/replica_healing.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/train/flip.h"
#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using test::flip;

using Block = WrongBlocks::Block;
using Hashes = std::vector<std::int64_t>;

WrongBlocks found_in(const Hashes& hashes, std::size_t blocks, const std::vector<int>& part_of) {
  return find_wrong_blocks(hashes, blocks, part_of);
}

TEST(WrongBlocks, TheMajorityOfEachBlockIsRight) {
  // three ranks with three blocks
  const WrongBlocks found = found_in({1, 2, 3,  //
                                      1, 9, 3,  //
                                      8, 2, 3},
                                     3, {0, 0, 0});
  EXPECT_EQ(found.wrong, (std::vector<Block>{{1, 1, 0}, {2, 0, 0}}));
  EXPECT_FALSE(found.undecided);
}

TEST(WrongBlocks, RankZeroIsNotBelievedMoreThanOthers) {
  EXPECT_EQ(found_in({7, 1, 1}, 1, {0, 0, 0}).wrong, (std::vector<Block>{{0, 0, 1}}));
}

TEST(WrongBlocks, OnlyRanksOfOnePartAreCompared) {
  const std::vector<int> part_of = {0, 1, 0, 1, 0, 1};
  EXPECT_TRUE(found_in({1, 2, 1, 2, 1, 2}, 1, part_of).wrong.empty());
  EXPECT_EQ(found_in({1, 2, 1, 1, 1, 2}, 1, part_of).wrong, (std::vector<Block>{{3, 0, 1}}));
}

TEST(WrongBlocks, TwoRanksDecideNothing) {
  const WrongBlocks found = found_in({1, 2, 1, 3}, 2, {0, 0});
  EXPECT_TRUE(found.wrong.empty());
  EXPECT_EQ(found.undecided, (Block{0, 1, 0}));
}

TEST(Minority, IsThatOfAPart) {
  test::on_ranks(6, [](comm::Communicator& world) {
    const std::vector<int> part_of = {0, 1, 0, 1, 2, 1};  // of part 0 there are two
    std::uint64_t hash =
        static_cast<std::uint64_t>(part_of[static_cast<std::size_t>(world.rank())]);
    EXPECT_TRUE(find_minority(world, part_of, hash).take_or_throw().empty());
    if (world.rank() == 2 || world.rank() == 3) hash = 7;
    EXPECT_EQ(find_minority(world, part_of, hash).take_or_throw(), std::vector<Rank>{3});
  });
}

std::vector<TensorPiece> pieces_of(const torch::Tensor& a, const torch::Tensor& b) {
  return {{.name = "a", .shape = {a.numel()}, .end = a.numel(), .values = a},
          {.name = "b", .shape = {b.numel()}, .end = b.numel(), .values = b}};
}

constexpr std::int64_t kPerBlock = StateBlocks::kBytes / 4;

/// Heals what `spoil` does on each of `ranks` ranks.
void heal(int ranks, const std::function<void(Rank, torch::Tensor&, torch::Tensor&)>& spoil,
          const std::function<void(const Result<std::vector<WrongReplica>>&)>& check) {
  test::on_ranks(ranks, [&](comm::Communicator& world) {
    torch::Tensor a = torch::arange(2 * kPerBlock + 5).to(torch::kFloat32);
    torch::Tensor b = torch::ones({3}, torch::kFloat64);
    const torch::Tensor right_a = a.clone(), right_b = b.clone();
    spoil(world.rank(), a, b);
    StateBlocks blocks(pieces_of(a, b));
    const std::vector<int> part_of(static_cast<std::size_t>(world.size()), 0);
    const auto found = heal_replicas(world, part_of, blocks, blocks.hash(0, blocks.size()));
    check(found);
    if (!found.ok()) return;
    EXPECT_TRUE(a.equal(right_a)) << "rank " << world.rank();
    EXPECT_TRUE(b.equal(right_b)) << "rank " << world.rank();
  });
}

TEST(HealReplicas, NamesTheRankAndWhereAndPutsItRight) {
  for (const Rank wrong : {0, 1, 2}) {
    heal(
        3,
        [&](Rank rank, torch::Tensor& a, torch::Tensor&) {
          if (rank == wrong) flip(a, 4 * (kPerBlock + 17));
        },
        [&](const auto& found) {
          ASSERT_TRUE(found.ok()) << found.status().to_string();
          ASSERT_EQ(found->size(), 1u);
          EXPECT_EQ(found->front().rank, wrong);
          const std::string& text = found->front().found;
          EXPECT_NE(text.find("rank " + std::to_string(wrong) + " (host"), std::string::npos);
          EXPECT_NE(text.find("'a', elements 65536 to 131071;"), std::string::npos) << text;
          const std::string from = "right from rank " + std::to_string(wrong == 0 ? 1 : 0);
          EXPECT_NE(text.find(from), std::string::npos) << text;
          ASSERT_TRUE(found->front().held);
          const WrongReplica::Held& held = *found->front().held;
          EXPECT_EQ(held.first.tensor, "a");
          EXPECT_EQ(held.first.first, 65536);
          EXPECT_EQ(held.first.last, 131071);
          EXPECT_EQ(held.places, 1);
          EXPECT_EQ(held.right, wrong == 0 ? 1 : 0);
        });
  }
}

TEST(HealReplicas, SeveralRanksInSeveralPlaces) {
  heal(
      5,
      [](Rank rank, torch::Tensor& a, torch::Tensor& b) {
        if (rank == 1) a.zero_();
        if (rank == 1) flip(b, 0);
        if (rank == 3) flip(b, 23);
      },
      [](const auto& found) {
        ASSERT_TRUE(found.ok()) << found.status().to_string();
        ASSERT_EQ(found->size(), 2u);
        EXPECT_EQ(found->at(0).rank, 1);
        EXPECT_NE(found->at(0).found.find("and 3 more places"), std::string::npos);
        EXPECT_EQ(found->at(0).held->places, 4);
        EXPECT_EQ(found->at(1).rank, 3);
        EXPECT_NE(found->at(1).found.find("'b', elements 0 to 2;"), std::string::npos);
      });
}

TEST(HealReplicas, WithoutAMajorityAllRanksEndWithTheSameText) {
  heal(
      2,
      [](Rank rank, torch::Tensor&, torch::Tensor& b) {
        if (rank == 1) flip(b, 0);
      },
      [](const auto& found) {
        EXPECT_EQ(found.status().code(), Code::kMismatch);
        EXPECT_NE(found.status().message().find("ranks 0, 1 hold different bits in 'b', elements "
                                                "0 to 2, and no majority"),
                  std::string::npos)
            << found.status().message();
      });
}

TEST(HealReplicas, AnErrorInReadingIsTheReadersAndChangesNothing) {
  for (const int ranks : {2, 3}) {
    test::on_ranks(ranks, [&](comm::Communicator& world) {
      const torch::Tensor a = torch::ones({4});
      StateBlocks blocks(pieces_of(a, a));
      const std::vector<int> part_of(static_cast<std::size_t>(ranks), 0);
      const auto found = heal_replicas(world, part_of, blocks, world.rank() == 1 ? 5 : 6);
      ASSERT_TRUE(found.ok()) << found.status().to_string();
      ASSERT_EQ(found->size(), 1u);
      EXPECT_EQ(found->front().rank, ranks == 2 ? -1 : 1);
      EXPECT_NE(found->front().found.find("when it looked again"), std::string::npos);
      EXPECT_FALSE(found->front().held);
    });
  }
}

TEST(HealReplicas, StatesOfOtherSizesAreRefused) {
  test::on_ranks(3, [](comm::Communicator& world) {
    const torch::Tensor a = torch::ones({4});
    const torch::Tensor b = torch::ones({world.rank() == 2 ? 2 * kPerBlock : 1});
    StateBlocks blocks(pieces_of(a, b));
    const auto found = heal_replicas(world, std::vector<int>{0, 0, 0}, blocks, 1);
    EXPECT_EQ(found.status().code(), Code::kMismatch);
    EXPECT_NE(found.status().message().find("rank 2 has another size"), std::string::npos);
  });
}

}  // namespace
}  // namespace stormo::train
