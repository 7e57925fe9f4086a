// Groups that their members make alone, in a job with a Store: what they leave there, who is named,
// and that nothing else of the job matters to them. What every engine must do is in the conformance
// suite.
#include <stormo/base/rng.h>
#include <stormo/comm/operation/meeting.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <set>

#include "tests/unit/comm/joined_ranks.h"

namespace stormo::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kLong = std::chrono::seconds(60);

using Made = Result<std::unique_ptr<Communicator>>;

Made group_of(Communicator& c, std::vector<Rank> members, const std::string& name,
              Duration limit = kLong) {
  return c.group_of(members, name, Deadline::after(limit));
}

void expect_sum(const Made& made, std::int64_t want) {
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  std::int64_t x = 1;
  EXPECT_OK((*made)->all_reduce(std::span(&x, 1), ReduceOp::kSum, Deadline::after(kLong)));
  EXPECT_EQ(x, want);
}

TEST(GroupOf, LeavesNothingInTheStore) {
  JoinedRanks job({2, 2});
  on_group(
      job.take(),
      [](Communicator& c) {
        const std::vector<std::vector<Rank>> sets = {{0, 1, 2, 3}, {1, 2}, {2, 3}, {1}};
        for (const std::vector<Rank>& members : sets) {
          if (std::ranges::binary_search(members, c.rank())) {
            const Made made = group_of(c, members, "same/name");
            expect_sum(made, static_cast<std::int64_t>(members.size()));
          }
          EXPECT_OK(c.barrier(Deadline::after(kLong)));
        }
      },
      /*finalize=*/true);
  const std::vector<std::string> set = job.keys_set({"name ", "met/", "group "});
  // of three, as one has nobody to meet: a name and an outcome of each, whoever has come, also to
  // an attempt of its own, where two leave, the hubs, data ports of two
  EXPECT_EQ(set.size(), 3u * 2u + 8u + 5u + 5u + 3u + 6u);
  for (const std::string& key : set) EXPECT_FALSE(job.has_value(key)) << key;
}

// The deadline of one ends the attempt of all that have come, at once; later the same name works.
TEST(GroupOf, AMissingMemberIsNamedToAllAndMayComeLater) {
  JoinedRanks job({2, 2});
  on_group(
      job.take(),
      [](Communicator& c) {
        if (c.rank() != 3) {
          const TimePoint start = std::chrono::steady_clock::now();
          const Made made =
              group_of(c, {0, 1, 2, 3}, "late", c.rank() == 1 ? milliseconds(300) : kLong);
          EXPECT_EQ(made.status().code(), Code::kDeadlineExceeded) << made.status().to_string();
          EXPECT_NE(made.status().message().find("rank 3 has not come"), std::string::npos)
              << made.status().to_string();
          EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
        }
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        expect_sum(group_of(c, {0, 1, 2, 3}, "late"), 4);
      },
      /*finalize=*/true);
}

// Deadlines that pass again and again while the others come: whoever succeeds succeeds with all.
TEST(GroupOf, AttemptsThatEndWhileOthersComeDoNoHarm) {
  JoinedRanks job({2, 2});
  std::atomic<int> attempts{0};
  on_group(
      job.take(),
      [&](Communicator& c) {
        for (int i = 0; i < 20; ++i) {
          for (auto limit = microseconds(10 + (c.rank() * 7 + i) % 5);; limit *= 2) {
            ++attempts;
            const Made made = group_of(c, {0, 1, 2, 3}, "again", limit);
            if (made.status().code() == Code::kDeadlineExceeded) continue;
            expect_sum(made, 4);
            break;
          }
          EXPECT_OK(c.barrier(Deadline::after(kLong)));
        }
      },
      /*finalize=*/true);
  EXPECT_GT(attempts.load(), 4 * 20);
  std::set<std::string> left;
  for (const std::string& key : job.keys_set({"name ", "met/"})) {
    if (job.has_value(key)) left.insert(key);
  }
  EXPECT_LT(left.size(), 8u) << "one key or two may be set when the others have just left";
}

TEST(GroupOf, AFailureOfTheJobEndsTheWaitForMembers) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        if (c.rank() == 1) return c.fail({Code::kIo, "rank 1: disk full"});
        const Status s = c.group_of(std::vector<Rank>{0, 1}, "never", Deadline::never()).status();
        EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
      },
      /*finalize=*/false);
}

/// What group_of of a rank does before it connects. Then the job fails.
void meet_and_fail(JoinedRanks& job, Communicator& c, const std::vector<Rank>& members,
                   const std::string& name) {
  const auto client = job.client();
  Meeting meeting({.values = *client,
                   .key = "name 0//" + name,
                   .name = name,
                   .members = members,
                   .me = c.rank(),
                   .job = [&c] { return c.status(); },
                   .has_left = nullptr});
  const auto met = meeting.meet(Deadline::after(kLong));
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  c.fail({Code::kIo, "rank " + std::to_string(c.rank()) + " has died"});
}

// The others wait for its connection, in every place where they can.
TEST(GroupOf, WhoDiesBetweenMeetingAndConnectingBlocksNobody) {
  struct Case {
    std::vector<int> hosts;
    Rank dies;
  };
  for (const auto& [hosts, dies] : {Case{{3}, 0}, Case{{3}, 2}, Case{{1, 1}, 0}, Case{{1, 1}, 1}}) {
    SCOPED_TRACE(std::to_string(hosts.size()) + " hosts, rank " + std::to_string(dies) + " dies");
    JoinedRanks job(hosts);
    on_group(
        job.take(),
        [&, who = dies](Communicator& c) {
          std::vector<Rank> all(static_cast<std::size_t>(c.size()));
          std::iota(all.begin(), all.end(), 0);
          if (c.rank() == who) return meet_and_fail(job, c, all, "all");
          const TimePoint start = std::chrono::steady_clock::now();
          const Status s = c.group_of(all, "all", Deadline::never()).status();
          EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
          EXPECT_NE(s.message().find("has died"), std::string::npos) << s.to_string();
          EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
        },
        /*finalize=*/false);
  }
}

// Numbers of a subgroup are not those of the job, in which ranks leave.
TEST(GroupOf, AMemberThatHasLeftIsNamedAtOnce) {
  JoinedRanks job({2, 2});
  std::atomic<bool> left{false};
  on_group(
      job.take(),
      [&](Communicator& c) {
        const auto three =
            c.rank() == 0 ? Made(std::unique_ptr<Communicator>()) : group_of(c, {1, 2, 3}, "three");
        ASSERT_TRUE(three.ok()) << three.status().to_string();
        if (c.rank() == 3) {
          EXPECT_OK(c.leave());
          left = true;
          return;
        }
        while (!left) std::this_thread::yield();
        if (c.rank() == 0) return;
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 2; ++i) {
          const Status s =
              (*three)->group_of(std::vector<Rank>{0, 1, 2}, "again", Deadline::never()).status();
          EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
          EXPECT_NE(s.message().find("rank 2 has left in order"), std::string::npos)
              << s.to_string();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
        expect_sum((*three)->group_of(std::vector<Rank>{0, 1}, "pair", Deadline::after(kLong)), 2);
        EXPECT_OK(c.status());
      },
      /*finalize=*/false);
}

// The others learn why, and need not wait for their deadlines.
TEST(GroupOf, ARankThatHoldsTheNameTellsThoseThatWait) {
  JoinedRanks job({2});
  std::atomic<int> waiting{0};
  on_group(
      job.take(),
      [&](Communicator& c) {
        Made first = group_of(c, {0, 1}, "name");
        ASSERT_TRUE(first.ok()) << first.status().to_string();
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        if (c.rank() == 0) {
          *first = nullptr;
          waiting = 1;
          const Status s = group_of(c, {0, 1}, "name").status();
          EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.to_string();
          EXPECT_NE(s.message().find("rank 1: "), std::string::npos) << s.to_string();
          waiting = 2;
          return;
        }
        while (waiting == 0) std::this_thread::yield();
        while (waiting == 1) {  // until it has come
          EXPECT_EQ(group_of(c, {0, 1}, "name").status().code(), Code::kInvalidArgument);
        }
      },
      /*finalize=*/true);
}

// torch.distributed gives the name of a destroyed group to others; a program may still have the
// object.
TEST(GroupOf, ANameIsFreeWhenItsGroupWasLeft) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        const Made first = group_of(c, {0, 1}, "name");
        expect_sum(first, 2);
        EXPECT_OK((*first)->leave());
        expect_sum(group_of(c, {0, 1}, "name"), 2);
      },
      /*finalize=*/true);
}

// In a Store that answers, members of one have nothing to ask it.
TEST(GroupOf, MembersOfOneNeedNoStore) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        const Made alone = group_of(c, {c.rank()}, "alone");
        expect_sum(alone, 1);
        expect_sum((*alone)->group_of(std::vector<Rank>{0}, "inside", Deadline::after(kLong)), 1);
        EXPECT_EQ(group_of(c, {c.rank()}, "alone").status().code(), Code::kInvalidArgument);
      },
      /*finalize=*/true);
  EXPECT_TRUE(job.keys_set({"name ", "met/", "group "}).empty());
}

// As PyTorch's new_group: no rank makes its groups in the order in which another one does, so each
// waits for all of them at once.
TEST(GroupOf, GroupsAreMadeInARandomOrderOnEachRank) {
  constexpr int kGroups = 200;
  std::vector<std::vector<Rank>> sets;
  Rng same(7, "groups");
  while (sets.size() < kGroups) {
    std::vector<Rank> members;
    for (Rank r = 0; r < 4; ++r) {
      if (same.below(2) == 0) members.push_back(r);
    }
    if (!members.empty()) sets.push_back(members);
  }
  JoinedRanks job({4});
  on_group(
      job.take(),
      [&](Communicator& c) {
        std::vector<std::size_t> mine;
        for (std::size_t g = 0; g < sets.size(); ++g) {
          if (std::ranges::binary_search(sets[g], c.rank())) mine.push_back(g);
        }
        Rng own(static_cast<std::uint64_t>(c.rank()), "order");
        for (std::size_t i = mine.size(); i > 1; --i) std::swap(mine[i - 1], mine[own.below(i)]);
        std::vector<std::future<void>> making;
        for (const std::size_t g : mine) {
          making.push_back(std::async(std::launch::async, [&, g] {
            const Made made = group_of(c, sets[g], "group " + std::to_string(g));
            expect_sum(made, static_cast<std::int64_t>(sets[g].size()));
          }));
        }
        for (auto& m : making) m.get();
      },
      /*finalize=*/true);
}

}  // namespace
}  // namespace stormo::comm
