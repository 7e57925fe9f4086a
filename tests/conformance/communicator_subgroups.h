#pragma once

#include <algorithm>
#include <random>

#include "tests/conformance/communicator_conformance.h"

/// For groups that can make subgroups.
namespace stormo::comm {

class CommunicatorSubgroups : public CommunicatorConformance {
 protected:
  static std::unique_ptr<Communicator> subgroup(Communicator& c, std::vector<Rank> members) {
    auto made = c.subgroup(members, Deadline::after(std::chrono::seconds(20)));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
};

TEST_P(CommunicatorSubgroups, MembersAreNumberedAnew) {
  on_each([](Communicator& c) {
    std::vector<Rank> most(static_cast<std::size_t>(c.size()) - 1);
    std::iota(most.begin(), most.end(), 1);
    const auto mine = subgroup(c, most);
    ASSERT_EQ(mine != nullptr, c.rank() > 0);
    if (mine == nullptr) return;
    EXPECT_EQ(mine->rank(), c.rank() - 1);
    EXPECT_EQ(mine->size(), c.size() - 1);
    std::int64_t x = c.rank();
    EXPECT_OK(mine->all_reduce(std::span(&x, 1), ReduceOp::kSum));
    EXPECT_EQ(x, c.size() * (c.size() - 1) / 2);
    const auto one = subgroup(*mine, {0});
    EXPECT_EQ(one != nullptr, c.rank() == 1);
    EXPECT_OK(mine->finalize(Deadline::after(std::chrono::seconds(20))));
  });
}

TEST_P(CommunicatorSubgroups, OverlappingOnesInAnyOrderNeverDeadlock) {
  on_each([](Communicator& c) {
    const std::vector<std::vector<Rank>> sets = {{0, 1}, {1, 2}, {0, 2}, {0, 1, 2}};
    std::vector<std::unique_ptr<Communicator>> groups;
    std::vector<std::size_t> mine;
    for (const auto& members : sets) {
      groups.push_back(subgroup(c, members));
      if (groups.back()) mine.push_back(groups.size() - 1);
    }
    std::mt19937 order(static_cast<unsigned>(c.rank()) + 1);  // a different one on each rank
    for (int i = 0; i < 200; ++i) {
      std::shuffle(mine.begin(), mine.end(), order);
      std::vector<std::int64_t> values(sets.size(), i + c.rank());
      std::vector<Work> pending;
      for (const std::size_t g : mine) {
        const Buffer b = std::span(&values[g], 1);
        pending.push_back(groups[g]->all_reduce_async({&b, 1}, ReduceOp::kSum));
      }
      for (Work& w : pending) EXPECT_OK(w.wait(Deadline::after(std::chrono::seconds(20))));
      for (const std::size_t g : mine) {
        std::int64_t want = 0;
        for (const Rank r : sets[g]) want += i + r;
        ASSERT_EQ(values[g], want) << "set " << g << ", turn " << i;
      }
    }
  });
}

}  // namespace stormo::comm
