// Ranks that leave in order. With processes: tests/multiproc/leave_test.cc.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "tests/unit/comm/joined_ranks.h"

namespace stormo::comm {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);

void expect_left(const Status& s, const std::string& says) {
  EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
  EXPECT_NE(s.message().find(says), std::string::npos) << s.to_string();
}

TEST(Leave, NothingIsCalledAfterIt) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        EXPECT_OK(c.leave());
        EXPECT_OK(c.leave());
        EXPECT_OK(c.finalize(Deadline::after(kLong)));
        EXPECT_EQ(c.barrier().code(), Code::kInvalidArgument);
        EXPECT_EQ(c.group_of(std::vector<Rank>{c.rank()}, "one", Deadline::never()).status().code(),
                  Code::kInvalidArgument);
      },
      /*finalize=*/false);
}

/// The time that a body takes.
Duration time_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::steady_clock::now() - begin;
}

/// Collectives of a group, until all of its ranks have seen enough.
void go_on(Communicator& group, const std::function<bool()>& enough) {
  for (std::vector<std::int64_t> goes_on(1, 1); goes_on[0] != 0;) {
    ::poll(nullptr, 0, 1);  // leaves the cores to others
    goes_on[0] = enough() ? 0 : 1;
    ASSERT_OK(group.all_reduce(goes_on, ReduceOp::kMax, Deadline::after(kLong)));
  }
}

// What it holds is of the program, which may end then.
TEST(Leave, WaitsForTheFunctionsAtTheEndOfOperations) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        std::atomic<bool> has_begun = false, has_returned = false;
        std::vector<float> x(10);
        const Buffer buffer = x;
        Work work = c.all_reduce_async({&buffer, 1}, ReduceOp::kSum);
        work.then([&](const Status&) {
          has_begun = true;
          ::poll(nullptr, 0, 300);
          has_returned = true;
        });
        while (!has_begun) ::poll(nullptr, 0, 1);
        EXPECT_OK(c.leave());
        EXPECT_TRUE(has_returned);
      },
      /*finalize=*/false);
}

class LeavePending : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(OnOneHost, LeavePending, testing::Values(std::vector<int>{3}));
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, LeavePending, testing::Values(std::vector<int>{2, 1}));
INSTANTIATE_TEST_SUITE_P(OnThreeHosts, LeavePending, testing::Values(std::vector<int>{1, 1, 1}));

// The first one runs when the rank leaves, the others wait for it.
TEST_P(LeavePending, CollectivesThatOthersDoNotCallAreCancelled) {
  JoinedRanks job(GetParam());
  std::atomic<bool> has_left = false;
  on_group(
      job.take(),
      [&](Communicator& c) {
        auto pair = c.subgroup(std::vector<Rank>{0, 2}, Deadline::after(kLong));
        ASSERT_OK(pair.status());
        if (c.rank() == 1) {
          std::vector<float> small(10), large(1 << 20);
          std::vector<Work> works;
          for (auto* x : {&large, &small, &large}) {
            const Buffer buffer = *x;
            works.push_back(c.all_reduce_async({&buffer, 1}, ReduceOp::kSum));
          }
          EXPECT_LT(time_of([&] { EXPECT_OK(c.leave()); }), std::chrono::seconds(30));
          for (Work& w : works) {
            EXPECT_EQ(w.wait(Deadline::after(kLong)).code(), Code::kCancelled);
          }
          has_left = true;
          return;
        }
        go_on(**pair, [&] { return has_left.load(); });
        // some heartbeats, in which nobody waits for the one that has left
        const Deadline end = Deadline::after(std::chrono::seconds(1));
        go_on(**pair, [&] { return end.expired(); });
        EXPECT_OK(c.status());
        EXPECT_OK((*pair)->leave());
        EXPECT_OK(c.leave());
      },
      /*finalize=*/false);
}

// Its memory may be used again when it has left.
TEST_P(LeavePending, WhoCallsACancelledCollectiveLaterFails) {
  JoinedRanks job(GetParam());
  std::atomic<bool> has_left = false;
  std::vector<float> its_own(1 << 20, 1);
  on_group(
      job.take(),
      [&](Communicator& c) {
        if (c.rank() == 1) {
          const Buffer buffer = its_own;
          Work work = c.all_reduce_async({&buffer, 1}, ReduceOp::kSum);
          EXPECT_OK(c.leave());
          EXPECT_TRUE(work.test());
          has_left = true;
          return;
        }
        while (!has_left) ::poll(nullptr, 0, 1);
        std::vector<float> x(1 << 20, 1);
        expect_left(c.all_reduce(x, ReduceOp::kSum, Deadline::after(kLong)),
                    "rank 1 has left in order");
      },
      /*finalize=*/false);
  EXPECT_EQ(its_own, std::vector<float>(1 << 20, 1));
}

TEST_P(LeavePending, WhatEndsSoonIsWaitedFor) {
  JoinedRanks job(GetParam());
  std::atomic<bool> leaves = false;
  on_group(
      job.take(),
      [&](Communicator& c) {
        if (c.rank() == 1) {
          Work pending = c.submit({.kind = OperationKind::kBarrier});
          std::vector<std::uint8_t> data(1 << 20, 7);
          Work sent = c.send_async(data, 2, 1);
          leaves = true;
          EXPECT_OK(c.leave());
          EXPECT_OK(pending.wait(Deadline::after(kLong)));
          EXPECT_OK(sent.wait(Deadline::after(kLong)));
          return;
        }
        while (!leaves) std::this_thread::yield();
        ::poll(nullptr, 0, 200);  // surely it is leaving now
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        std::vector<std::uint8_t> data(1 << 20);
        if (c.rank() == 2) {
          EXPECT_OK(c.recv(data, 1, 1, Deadline::after(kLong)));
          EXPECT_EQ(data, std::vector<std::uint8_t>(1 << 20, 7));
        }
        EXPECT_OK(c.leave());
      },
      /*finalize=*/false);
}

// A caller was in it for longer than a heartbeat or two, so the Store was asked.
TEST(Leave, ASubgroupThatHasEndedLeavesNothingInTheStore) {
  for (const bool finalizes : {true, false}) {
    JoinedRanks job({2});
    on_group(
        job.take(),
        [&](Communicator& c) {
          auto made = c.subgroup(std::vector<Rank>{0, 1}, Deadline::after(kLong));
          ASSERT_OK(made.status());
          while (c.rank() == 1 && job.keys_set({"stuck/"}).empty()) {
            ::poll(nullptr, 0, 1);
          }
          EXPECT_OK((*made)->barrier(Deadline::after(kLong)));
          EXPECT_OK(finalizes ? (*made)->finalize(Deadline::after(kLong)) : (*made)->leave());
          EXPECT_OK(c.barrier(Deadline::after(kLong)));
          for (const std::string& key : job.keys_set({"left/group", "stuck/group"})) {
            EXPECT_FALSE(job.has_value(key)) << key;
          }
          EXPECT_OK(c.leave());
        },
        /*finalize=*/false);
    EXPECT_FALSE(job.keys_set({"stuck/group"}).empty());
  }
}

// Two hosts: the rank that has left is one of another host, and its connections stay open.
TEST(Leave, OnlyWhatNeedsTheRankFails) {
  JoinedRanks job({1, 2});
  std::atomic<int> left{0};
  on_group(
      job.take(),
      [&](Communicator& c) {
        std::unique_ptr<Communicator> pair;
        if (c.rank() > 0) {
          auto made = c.group_of(std::vector<Rank>{1, 2}, "pair", Deadline::after(kLong));
          ASSERT_TRUE(made.ok()) << made.status().to_string();
          pair = std::move(*made);
        }
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        if (c.rank() == 0) {
          EXPECT_OK(c.leave());
          ++left;
          while (left < 3) std::this_thread::yield();
          return;
        }
        while (left == 0) std::this_thread::yield();
        for (int i = 0; i < 100; ++i) EXPECT_OK(pair->barrier(Deadline::after(kLong)));
        expect_left(c.finalize(Deadline::after(kLong)), "rank 0 has left in order");
        ++left;
      },
      /*finalize=*/false);
}

TEST(Leave, ASubgroupIsLeftAlone) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        auto made = c.subgroup(std::vector<Rank>{0, 1}, Deadline::after(kLong));
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        if (c.rank() == 1) EXPECT_OK((*made)->leave());
        EXPECT_OK(c.barrier(Deadline::after(kLong)));
        if (c.rank() == 0) {
          expect_left((*made)->barrier(Deadline::after(kLong)), "rank 1 has left in order");
        } else {
          EXPECT_EQ((*made)->barrier().code(), Code::kInvalidArgument);
        }
      },
      /*finalize=*/false);
}

// Nobody has to be told any more, and nobody waits.
TEST(Leave, AfterAFailureItReturnsTheCause) {
  JoinedRanks job({2});
  on_group(
      job.take(),
      [](Communicator& c) {
        if (c.rank() == 1) c.fail({Code::kCorrupt, "bad data"});
        while (c.status().ok()) std::this_thread::yield();
        const Status left = c.leave();
        EXPECT_EQ(left.code(), Code::kCorrupt) << left.to_string();
        EXPECT_NE(left.message().find("bad data"), std::string::npos) << left.to_string();
        EXPECT_OK(c.leave());
        EXPECT_EQ(c.barrier().code(), Code::kInvalidArgument);
      },
      /*finalize=*/false);
  EXPECT_EQ(job.keys_set({"left/"}), std::vector<std::string>());
}

TEST(Leave, ThreadsOfOneProcessAreToldToo) {
  auto group = make_inproc_group(2);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  on_group(
      std::move(*group),
      [](Communicator& c) {
        if (c.rank() == 1) {
          EXPECT_OK(c.leave());
        } else {
          expect_left(c.barrier(Deadline::after(kLong)), "rank 1 of this host has left");
        }
      },
      /*finalize=*/false);
}

}  // namespace
}  // namespace stormo::comm
