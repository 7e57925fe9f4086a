// Groups of some ranks: their numbering, their independence, and overlapping ones in any order.
#include <algorithm>
#include <atomic>
#include <random>

#include <stormo/comm/split.h>

#include "tests/unit/comm/joined_ranks.h"

namespace stormo::comm {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);

/// As on_ranks, with groups that can make subgroups.
void on_connected_ranks(int n, const Body& body, bool finalize = true) {
  auto made = make_inproc_group(n);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  std::vector<std::thread> threads;
  for (auto& communicator : *made) {
    threads.emplace_back([&, c = communicator.get()] {
      body(*c);
      if (finalize) EXPECT_OK(c->finalize(Deadline::after(kLong)));
    });
  }
  for (std::thread& t : threads) t.join();
}

std::unique_ptr<Communicator> subgroup(Communicator& c, std::vector<Rank> members) {
  auto made = c.subgroup(members, Deadline::after(kLong));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

TEST(Subgroup, MembersAreNumberedAnew) {
  on_connected_ranks(5, [](Communicator& c) {
    const auto odd = subgroup(c, {1, 3});
    const auto even = subgroup(c, {0, 2, 4});
    EXPECT_EQ(odd != nullptr, c.rank() % 2 == 1);
    Communicator& mine = odd ? *odd : *even;
    EXPECT_EQ(mine.rank(), c.rank() / 2);
    EXPECT_EQ(mine.size(), odd ? 2 : 3);
    std::int64_t x = c.rank();
    EXPECT_OK(mine.all_reduce(std::span(&x, 1), ReduceOp::kSum));
    EXPECT_EQ(x, odd ? 1 + 3 : 0 + 2 + 4);
    EXPECT_OK(mine.finalize(Deadline::after(kLong)));
  });
}

TEST(Split, RanksOfAColorAreAGroup) {
  on_connected_ranks(7, [](Communicator& c) {
    // colours 9, none, 4, 9, none, 4, 9
    const std::int64_t color = c.rank() % 3 == 0 ? 9 : (c.rank() % 3 == 1 ? -1 : 4);
    auto made = split(c, color, c.rank(), Deadline::after(kLong));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(*made == nullptr, color < 0);
    if (*made == nullptr) return;
    EXPECT_EQ((*made)->size(), color == 9 ? 3 : 2);
    EXPECT_EQ((*made)->rank(), c.rank() / 3);
    std::int64_t x = c.rank();
    EXPECT_OK((*made)->all_reduce(std::span(&x, 1), ReduceOp::kSum));
    EXPECT_EQ(x, color == 9 ? 0 + 3 + 6 : 2 + 5);
    EXPECT_OK((*made)->finalize(Deadline::after(kLong)));
  });
}

TEST(Split, NobodyIsAMemberOfNoColor) {
  on_connected_ranks(3, [](Communicator& c) {
    auto made = split(c, -c.rank() - 1, 0, Deadline::after(kLong));
    EXPECT_TRUE(made.ok() && *made == nullptr);
  });
}

// Equal keys keep the order; keys that change it are refused by all, and the group lives on.
TEST(Split, KeysThatChangeTheOrderAreRefusedOnAllRanks) {
  on_connected_ranks(4, [](Communicator& c) {
    const auto refused = split(c, c.rank() / 2, c.rank() < 2 ? 0 : -c.rank(), Deadline::never());
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("put rank 3 before rank 2"), std::string::npos);
    auto made = split(c, c.rank() / 2, 0, Deadline::after(kLong));
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->rank(), c.rank() % 2);
    EXPECT_OK((*made)->finalize(Deadline::after(kLong)));
  });
}

TEST(Subgroup, OfASubgroup) {
  on_connected_ranks(4, [](Communicator& c) {
    const auto three = subgroup(c, {1, 2, 3});
    if (three == nullptr) return;
    const auto two = subgroup(*three, {0, 2});  // ranks 1 and 3 of the world
    EXPECT_EQ(two == nullptr, c.rank() == 2);
    if (two == nullptr) return;
    std::int64_t x = c.rank();
    EXPECT_OK(two->all_reduce(std::span(&x, 1), ReduceOp::kSum));
    EXPECT_EQ(x, 4);
  });
}

TEST(Subgroup, DisjointOnesDoNotWaitForEachOther) {
  std::atomic<int> fast_done{0};
  on_connected_ranks(4, [&](Communicator& c) {
    const auto slow = subgroup(c, {0, 1});
    const auto fast = subgroup(c, {2, 3});
    // rank 0 holds the slow group up until the fast one is through
    while (c.rank() == 0 && fast_done.load() < 2 && c.status().ok()) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) EXPECT_OK((slow ? *slow : *fast).barrier(Deadline::after(kLong)));
    if (fast) ++fast_done;
  });
}

TEST(Subgroup, OverlappingOnesInAnyOrderNeverDeadlock) {
  constexpr int kSchedules = kSanitized ? 1000 : 10000;
  const std::vector<std::vector<Rank>> sets = {{0, 1, 2}, {1, 2, 3}, {0, 3}, {0, 1, 2, 3}};
  on_connected_ranks(4, [&](Communicator& c) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const auto& members : sets) groups.push_back(subgroup(c, members));
    std::mt19937 order(static_cast<unsigned>(c.rank()) + 1);  // a different order on each rank
    for (int i = 0; i < kSchedules; ++i) {
      std::vector<std::size_t> mine;
      for (std::size_t g = 0; g < sets.size(); ++g) {
        if (groups[g]) mine.push_back(g);
      }
      std::shuffle(mine.begin(), mine.end(), order);
      std::vector<std::int64_t> values(sets.size(), i + c.rank());
      std::vector<Work> pending;
      for (const std::size_t g : mine) {
        const Buffer b = std::span(&values[g], 1);
        pending.push_back(groups[g]->all_reduce_async({&b, 1}, ReduceOp::kSum));
      }
      for (Work& w : pending) EXPECT_OK(w.wait(Deadline::after(kLong)));
      for (const std::size_t g : mine) {
        std::int64_t want = 0;
        for (const Rank r : sets[g]) want += i + r;
        ASSERT_EQ(values[g], want) << "set " << g << ", schedule " << i;
      }
    }
  });
}

TEST(Subgroup, BadMembersAreRefusedAndDifferentOnesRaiseEverywhere) {
  on_connected_ranks(
      3,
      [](Communicator& c) {
        const auto refused = [&](std::vector<Rank> members) {
          return c.subgroup(members, Deadline::never()).status().code();
        };
        EXPECT_EQ(refused({}), Code::kInvalidArgument);
        EXPECT_EQ(refused({0, 3}), Code::kInvalidArgument);
        EXPECT_EQ(refused({1, 0}), Code::kInvalidArgument);
        EXPECT_OK(c.barrier());
        const std::vector<Rank> mine = c.rank() == 0 ? std::vector{0, 1} : std::vector{0, 2};
        const Status s = c.subgroup(mine, Deadline::after(kLong)).status();
        EXPECT_EQ(s.code(), Code::kMismatch) << s.to_string();
        EXPECT_NE(s.message().find("rank 2: subgroup"), std::string::npos) << s.to_string();
      },
      /*finalize=*/false);
}

/// Soaks make groups all day long.
TEST(Subgroup, LeavesNothingInTheStore) {
  JoinedRanks job({2, 2});
  on_group(
      job.take(),
      [](Communicator& c) {
        const auto all = subgroup(c, {0, 1, 2, 3});
        const auto across = subgroup(c, {1, 2});
      },
      /*finalize=*/true);
  const std::vector<std::string> met_at = job.keys_set({"group "});
  EXPECT_EQ(met_at.size(), 2u + 4u + 2u);  // hubs and data ports of all, data ports of the pair
  for (const std::string& key : met_at) EXPECT_FALSE(job.has_value(key)) << key;
}

TEST(Subgroup, AFailureOfTheJobEndsItsWaits) {
  on_connected_ranks(
      3,
      [](Communicator& c) {
        const auto pair = subgroup(c, {0, 1});
        if (c.rank() == 2) c.fail({Code::kIo, "rank 2: disk full"});
        if (c.rank() != 0) return;
        const Status s = pair->barrier(Deadline::after(kLong));
        EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
      },
      /*finalize=*/false);
}

}  // namespace
}  // namespace stormo::comm
