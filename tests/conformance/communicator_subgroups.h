#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

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
  static Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
  /// By its members alone.
  static std::unique_ptr<Communicator> group_of(Communicator& c, const std::vector<Rank>& members,
                                                const std::string& name) {
    auto made = c.group_of(members, name, soon());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  static std::vector<Rank> all_ranks(Communicator& c) {
    std::vector<Rank> all(static_cast<std::size_t>(c.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  static std::vector<Rank> all_but_the_first(Communicator& c) {
    auto most = all_ranks(c);
    most.erase(most.begin());
    return most;
  }
};

TEST_P(CommunicatorSubgroups, MembersAreNumberedAnew) {
  on_each([](Communicator& c) {
    const auto mine = subgroup(c, all_but_the_first(c));
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
    if (c.size() < 3) return;
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

/// Each rank makes its groups in the order of their numbers, at its own pace.
TEST_P(CommunicatorSubgroups, ManyGroupsAreMadeByTheirMembersAlone) {
  on_each([](Communicator& c) {
    std::mt19937 same(7);  // on all ranks
    std::mt19937 own(static_cast<unsigned>(c.rank()) + 1);
    for (int i = 0; i < 200; ++i) {
      std::vector<Rank> members;
      while (members.empty()) {
        for (Rank r = 0; r < c.size(); ++r) {
          if (same() % 2 == 0) members.push_back(r);
        }
      }
      if (!std::ranges::binary_search(members, c.rank())) continue;
      for (auto late = own() % 100000; late > 0; --late) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      const auto group = group_of(c, members, "group/" + std::to_string(i));
      ASSERT_NE(group, nullptr);
      ASSERT_EQ(group->size(), static_cast<int>(members.size()));
      ASSERT_EQ(members[static_cast<std::size_t>(group->rank())], c.rank());
      std::int64_t x = c.rank() + 1;
      EXPECT_OK(group->all_reduce(std::span(&x, 1), ReduceOp::kSum, soon()));
      ASSERT_EQ(x,
                std::accumulate(members.begin(), members.end(), std::int64_t{0}) + group->size());
      EXPECT_OK(group->finalize(soon()));
    }
  });
}

TEST_P(CommunicatorSubgroups, GroupsOfMembersDoNotWaitForOtherOperations) {
  on_each([](Communicator& c) {
    // the first rank is late for a barrier of all, and makes a group with the second before it
    Work pending;
    if (c.rank() != 0) pending = c.submit({.kind = OperationKind::kBarrier});
    if (c.rank() < 2) {
      const auto pair = group_of(c, {0, 1}, std::string("pair\0/\xff", 7));
      ASSERT_NE(pair, nullptr);
      EXPECT_OK(pair->barrier(soon()));
      EXPECT_OK(pair->finalize(soon()));
    }
    EXPECT_OK(c.rank() == 0 ? c.barrier(soon()) : pending.wait(soon()));
  });
}

TEST_P(CommunicatorSubgroups, OverlappingGroupsOfMembersRunInAnyOrder) {
  on_each([](Communicator& c) {
    const auto all = group_of(c, all_ranks(c), "all");
    const auto most = c.rank() == 0 ? nullptr : group_of(c, all_but_the_first(c), "most");
    for (int i = 0; i < 50; ++i) {
      std::array<std::int64_t, 2> x{1, 1};
      std::array<Work, 2> pending;
      // in opposite order on neighbours
      for (const std::size_t g : c.rank() % 2 == 0 ? std::array{0u, 1u} : std::array{1u, 0u}) {
        Communicator* const group = g == 0 ? all.get() : most.get();
        const Buffer b = std::span(&x[g], 1);
        if (group != nullptr) pending[g] = group->all_reduce_async({&b, 1}, ReduceOp::kSum);
      }
      EXPECT_OK(pending[0].wait(soon()));
      ASSERT_EQ(x[0], c.size());
      if (most == nullptr) continue;
      EXPECT_OK(pending[1].wait(soon()));
      ASSERT_EQ(x[1], c.size() - 1);
    }
    if (most != nullptr) EXPECT_OK(most->finalize(soon()));
    EXPECT_OK(all->finalize(soon()));
  });
}

TEST_P(CommunicatorSubgroups, ThreadsMakeGroupsOfMembersAtOnce) {
  on_each([](Communicator& c) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&c, t] {
        for (int i = 0; i < 5; ++i) {
          // in another order on each rank
          const auto group =
              group_of(c, all_ranks(c), "of thread " + std::to_string((t + c.rank()) % 4));
          ASSERT_NE(group, nullptr);
          EXPECT_OK(group->barrier(soon()));
          EXPECT_OK(group->finalize(soon()));
        }
      });
    }
    for (std::thread& t : threads) t.join();
  });
}

TEST_P(CommunicatorSubgroups, DifferentMembersUnderOneNameAreToldToBoth) {
  on_each([](Communicator& c) {
    if (c.size() < 3) return;
    if (c.rank() < 2) {  // either may be the first
      const auto members = c.rank() == 0 ? std::vector<Rank>{0, 1} : all_ranks(c);
      const Status s = c.group_of(members, "odd", soon()).status();
      EXPECT_EQ(s.code(), Code::kMismatch) << s.to_string();
      EXPECT_NE(s.message().find("gives the members 0 1"), std::string::npos) << s.to_string();
      EXPECT_NE(s.message().find("gives 0 1"), std::string::npos) << s.to_string();
      EXPECT_NE(s.message().find("0 1 2"), std::string::npos) << s.to_string();
    }
    EXPECT_OK(c.barrier(soon()));
    const auto all = group_of(c, all_ranks(c), "odd");  // nothing has been left
    ASSERT_NE(all, nullptr);
    EXPECT_OK(all->finalize(soon()));
  });
}

/// To all that have come, at the first deadline.
TEST_P(CommunicatorSubgroups, AMemberThatDoesNotComeIsNamed) {
  on_each([](Communicator& c) {
    EXPECT_OK(c.barrier(soon()));
    const Rank missing = c.size() - 1;
    if (c.rank() != missing) {
      const Deadline by =
          c.rank() == 0 ? Deadline::after(std::chrono::milliseconds(500)) : Deadline::never();
      const Status s = c.group_of(all_ranks(c), "late", by).status();
      EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
      const std::string says = "rank " + std::to_string(missing) + " has not come";
      EXPECT_NE(s.message().find(says), std::string::npos) << s.to_string();
    }
    EXPECT_OK(c.barrier(soon()));
    const auto all = group_of(c, all_ranks(c), "late");  // nothing has been left
    ASSERT_NE(all, nullptr);
    EXPECT_OK(all->finalize(soon()));
  });
}

TEST_P(CommunicatorSubgroups, WrongNamesAndMembersAreRefused) {
  on_each([](Communicator& c) {
    const auto refused = [&](std::vector<Rank> members, const std::string& name) {
      return c.group_of(members, name, soon()).status().code();
    };
    const auto alone = group_of(c, {c.rank()}, "alone" + std::to_string(c.rank()));
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_OK(alone->barrier(soon()));
    EXPECT_EQ(refused({c.rank()}, "alone" + std::to_string(c.rank())), Code::kInvalidArgument);
    EXPECT_EQ(refused(all_ranks(c), ""), Code::kInvalidArgument);
    EXPECT_EQ(refused(all_ranks(c), std::string(256, 'x')), Code::kInvalidArgument);
    EXPECT_EQ(refused({}, "nobody"), Code::kInvalidArgument);
    EXPECT_EQ(refused({(c.rank() + 1) % c.size()}, "others"), Code::kInvalidArgument);
    EXPECT_EQ(refused({c.rank(), c.size()}, "unknown"), Code::kInvalidArgument);
    EXPECT_OK(alone->finalize(soon()));
  });
}

}  // namespace stormo::comm
