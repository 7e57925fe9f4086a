// Messages when ranks leave at different times, and when a group ends: what has been sent arrives,
// and who needs nothing of a rank that has left goes on.
#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include <stormo/protocol/supervisor.h>

#include "tests/unit/comm/joined_ranks.h"

namespace stormo::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kShort = 16 << 10;
constexpr std::size_t kLong = 300'000;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// Each rank is destroyed when its body has returned.
void on_each(std::vector<std::unique_ptr<Communicator>> ranks,
             const std::function<void(std::unique_ptr<Communicator>&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&] {
      body(rank);
      rank.reset();
    });
  }
  for (std::thread& t : threads) t.join();
}

std::vector<std::string> failures(JoinedRanks& job) {
  return job.keys_set({std::string(protocol::kFailureKey)});
}

void exchange(Communicator& c, Rank peer, int times) {
  for (int i = 0; i < times; ++i) {
    for (const std::size_t bytes : {std::size_t{1}, kShort, kLong}) {
      Bytes out(bytes, static_cast<std::uint8_t>(i)), in(bytes);
      Work sent = c.send_async(out, peer, 3);
      ASSERT_OK(c.recv(in, peer, 3, soon()));
      ASSERT_OK(sent.wait(soon()));
      ASSERT_EQ(in, out);
    }
  }
}

class Ends : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(OnOneHost, Ends, testing::Values(std::vector<int>{3}));
INSTANTIATE_TEST_SUITE_P(OnThreeHosts, Ends, testing::Values(std::vector<int>{1, 1, 1}));
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, Ends, testing::Values(std::vector<int>{2, 1}));

TEST_P(Ends, OthersGoOnWithoutARankThatHasLeft) {
  JoinedRanks job(GetParam());
  std::atomic<bool> is_gone = false;
  on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
    if (c->rank() == 0) {
      EXPECT_OK(c->leave());
      c.reset();
      is_gone = true;
      return;
    }
    const Rank peer = 3 - c->rank();
    exchange(*c, peer, 1);
    while (!is_gone) std::this_thread::yield();
    exchange(*c, peer, 100);
    EXPECT_OK(c->leave());
  });
  EXPECT_TRUE(failures(job).empty());
}

TEST_P(Ends, OthersGoOnInAGroupThatAMemberHasDestroyed) {
  JoinedRanks job(GetParam());
  std::atomic<bool> is_gone = false;
  on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
    auto made = c->group_of(std::vector<Rank>{0, 1, 2}, "group", soon());
    ASSERT_OK(made.status());
    if (c->rank() == 0) {
      made->reset();
      is_gone = true;
    } else {
      while (!is_gone) std::this_thread::yield();
      exchange(**made, 3 - c->rank(), 20);
    }
    EXPECT_OK(c->finalize(soon()));
  });
  EXPECT_TRUE(failures(job).empty());
}

TEST_P(Ends, AReceiveFromARankThatHasLeftSaysSo) {
  for (const bool is_async : {false, true}) {
    JoinedRanks job(GetParam());
    std::atomic<bool> is_gone = false;
    on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
      if (c->rank() == 0) {
        EXPECT_OK(c->leave());
        is_gone = true;
        return;
      }
      Bytes in(1);
      Work work;
      if (is_async) work = c->recv_async(in, 0, 3);
      while (!is_gone) std::this_thread::yield();
      const Status outcome = is_async ? work.wait(soon()) : c->recv(in, 0, 3, soon());
      EXPECT_EQ(outcome.code(), Code::kPeerLost) << outcome.to_string();
      EXPECT_NE(outcome.message().find("has left"), std::string::npos) << outcome.to_string();
    });
  }
}

TEST(End, WithThreadsOfOneProcessAReceiveFromARankThatHasLeftSaysSo) {
  auto group = make_inproc_group(2);
  ASSERT_OK(group.status());
  on_each(std::move(*group), [](std::unique_ptr<Communicator>& c) {
    if (c->rank() == 1) {
      EXPECT_OK(c->leave());
      return;
    }
    Bytes in(1);
    const Status outcome = c->recv(in, 1, 3, soon());
    EXPECT_EQ(outcome.code(), Code::kPeerLost) << outcome.to_string();
    EXPECT_NE(outcome.message().find("rank 1 has left the group"), std::string::npos);
  });
}

/// Of messages that the others do not want, or want only after it has left; but nobody waits.
TEST_P(Ends, MessagesThatNobodyWantsEndWhenARankLeaves) {
  JoinedRanks job(GetParam());
  std::atomic<bool> is_gone = false;
  on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
    Bytes data(1 << 20), never(1);
    if (c->rank() == 2) {
      Work sent = c->send_async(data, 0, 3);
      Work never_sent = c->recv_async(never, 0, 4);
      Work also_sent = c->send_async(data, 1, 5);
      EXPECT_OK(c->leave());
      for (Work* w : {&sent, &never_sent, &also_sent}) {
        EXPECT_EQ(w->wait(soon()).code(), Code::kCancelled);
      }
      c.reset();
      is_gone = true;
      return;
    }
    const Rank peer = 1 - c->rank();
    exchange(*c, peer, 1);
    while (!is_gone) std::this_thread::yield();
    Work late = c->recv_async(data, 2, c->rank() == 0 ? 3 : 5);
    exchange(*c, peer, 100);
    EXPECT_OK(c->status());
    EXPECT_OK(c->leave());
    EXPECT_EQ(late.wait(soon()).code(), Code::kCancelled);
  });
  EXPECT_TRUE(failures(job).empty());
}

/// The receiver waits until the sender is gone, with all its sockets and memory.
TEST_P(Ends, WhatWasSentBeforeLeavingArrives) {
  JoinedRanks job(GetParam());
  std::atomic<bool> is_gone = false;
  constexpr int kMessages = 50;
  on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
    Bytes large(8 << 20, 7);
    if (c->rank() == 0) {
      Work back = c->recv_async(large, 2, 5);
      for (int i = 0; i < kMessages; ++i) {
        Bytes out(600, static_cast<std::uint8_t>(i));
        EXPECT_OK(c->send(out, 2, 3, soon()));
      }
      EXPECT_OK(back.wait(soon()));
      EXPECT_OK(c->leave());
      c.reset();
      is_gone = true;
      return;
    }
    if (c->rank() == 2) {
      EXPECT_OK(c->send(large, 0, 5, soon()));
      while (!is_gone) std::this_thread::yield();
      for (int i = 0; i < kMessages; ++i) {
        Bytes in(600);
        ASSERT_OK(c->recv(in, 0, 3, soon()));
        ASSERT_EQ(in, Bytes(600, static_cast<std::uint8_t>(i)));
      }
    }
    EXPECT_OK(c->leave());
  });
}

/// Also short messages that are complete at their sender, and fill what is between two hosts.
TEST_P(Ends, WhatIsForgottenFailsNoJob) {
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    JoinedRanks job(GetParam());
    Bytes out(kLong), in(kLong), small(kShort);
    std::vector<Work> works(4);
    on_each(job.take(), [&](std::unique_ptr<Communicator>& c) {
      const auto r = static_cast<std::size_t>(c->rank());
      if (r == 0) works[0] = c->recv_async(in, 2, 3);
      for (int i = 0; r == 0 && i < 7; ++i) static_cast<void>(c->send_async(small, 2, 5));
      if (r == 1) works[1] = c->send_async(out, 2, 4);
      if (r == 1) works[2] = c->send_async(out, 0, 4);
      if (r == 2) works[3] = c->send_async(out, 1, 4);
      EXPECT_OK(c->finalize(soon()));
    });
    for (Work& w : works) EXPECT_EQ(w.wait(soon()).code(), Code::kCancelled);
    EXPECT_TRUE(failures(job).empty());
  }
}

TEST(End, NobodyElseIsInAGroupOfOne) {
  JoinedRanks job({1});
  on_each(job.take(), [](std::unique_ptr<Communicator>& c) {
    Bytes in(1);
    Rank from = kAnyRank;
    EXPECT_EQ(c->recv_any(in, 1, from).code(), Code::kInvalidArgument);
    EXPECT_EQ(c->recv_any_async(in, 1, from).wait().code(), Code::kInvalidArgument);
    EXPECT_OK(c->finalize(soon()));
  });
}

}  // namespace
}  // namespace stormo::comm
