#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/conformance/communicator_conformance.h"
#include "tests/long.h"
#include "tests/unit/comm/message_programs.h"

/// Messages: by peer and tag, in any order, beside collectives.
namespace stormo::comm {

/// Filled with the number of the sender and of the message.
inline std::vector<std::int32_t> message_of(Rank from, std::int32_t number, std::size_t count) {
  return std::vector<std::int32_t>(count, 1000 * (from + 1) + number);
}

TEST_P(CommunicatorConformance, MessagesOfAnotherTagAreNotWaitedFor) {
  on_each([](Communicator& c) {
    if (c.size() == 1) return;
    const Rank next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
    for (const std::size_t count : {0U, 1U, 5000U, 300000U}) {
      std::vector<std::vector<std::int32_t>> out, in(8);
      std::vector<Work> works;
      for (int i = 0; i < 8; ++i) out.push_back(message_of(c.rank(), i, count));
      for (int i = 0; i < 8; ++i) {
        works.push_back(
            c.send_async(out[static_cast<std::size_t>(i)], next, static_cast<std::uint32_t>(i)));
      }
      for (int i = 8; i-- > 0;) {  // the last one first
        std::vector<std::int32_t>& one = in[static_cast<std::size_t>(i)];
        one.resize(count);
        EXPECT_OK(c.recv(one, previous, static_cast<std::uint32_t>(i)));
        EXPECT_EQ(one, message_of(previous, i, count));
      }
      for (Work& w : works) EXPECT_OK(w.wait());
    }
  });
}

TEST_P(CommunicatorConformance, AReceiveOfAnyRankSaysWhoSent) {
  on_each([](Communicator& c) {
    for (const std::uint32_t tag : {3U, 4U}) {
      const std::size_t count = tag == 3 ? 1 : 200000;
      if (c.rank() != 0) {
        auto mine = message_of(c.rank(), 0, count);
        EXPECT_OK(c.send(mine, 0, tag));
        continue;
      }
      std::set<Rank> senders;
      for (int i = 1; i < c.size(); ++i) {
        std::vector<std::int32_t> theirs(count);
        Rank from = kAnyRank;
        EXPECT_OK(c.recv_any(theirs, tag, from));
        EXPECT_EQ(theirs, message_of(from, 0, count));
        senders.insert(from);
      }
      EXPECT_EQ(senders.size(), static_cast<std::size_t>(c.size() - 1));
      EXPECT_FALSE(senders.contains(0));
    }
  });
}

/// All send to all before anybody receives, and each receives from the last one first.
TEST_P(CommunicatorConformance, AllSendToAllInTheWorstOrder) {
  on_each([](Communicator& c) {
    constexpr std::size_t kCount = 100000;
    auto mine = message_of(c.rank(), 0, kCount);
    std::vector<std::vector<std::int32_t>> theirs(static_cast<std::size_t>(c.size()));
    std::vector<Work> works;
    for (Rank to = 0; to < c.size(); ++to) {
      if (to == c.rank()) continue;
      works.push_back(c.send_async(mine, to, 1));
    }
    for (Rank from = c.size(); from-- > 0;) {
      if (from == c.rank()) continue;
      auto& in = theirs[static_cast<std::size_t>(from)];
      in.resize(kCount);
      works.push_back(c.recv_async(in, from, 1));
    }
    for (std::size_t i = works.size(); i-- > 0;) EXPECT_OK(works[i].wait());
    for (Rank from = 0; from < c.size(); ++from) {
      if (from == c.rank()) continue;
      EXPECT_EQ(theirs[static_cast<std::size_t>(from)], message_of(from, 0, kCount));
    }
  });
}

/// A receive that nobody serves yet does not hold up collectives, nor these a message.
TEST_P(CommunicatorConformance, MessagesAndCollectivesDoNotWaitForEachOther) {
  on_each([](Communicator& c) {
    if (c.size() == 1) return;
    for (const std::size_t count : {1U, 100000U}) {
      const Rank next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
      std::vector<std::int32_t> theirs(count);
      Work received = c.recv_async(theirs, previous, 9);
      std::vector<double> one = {1};
      EXPECT_OK(c.all_reduce(one, ReduceOp::kSum));
      EXPECT_EQ(one[0], c.size());
      EXPECT_FALSE(received.test());
      EXPECT_OK(c.barrier());
      auto mine = message_of(c.rank(), 0, count);
      std::atomic<bool> told = false;
      received.then([&](const Status& outcome) { told = outcome.ok(); });
      EXPECT_OK(c.send(mine, next, 9));
      EXPECT_OK(received.wait());
      EXPECT_TRUE(told);
      EXPECT_EQ(theirs, message_of(previous, 0, count));
    }
  });
}

/// What a function of a message posts is sent, too.
TEST_P(CommunicatorConformance, AFunctionOfAMessageMaySendOn) {
  on_each([](Communicator& c) {
    if (c.size() == 1) return;
    const Rank next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
    std::vector<std::int32_t> token = {7};
    Work sent;
    if (c.rank() == 0) EXPECT_OK(c.send(token, next, 1));
    Work received = c.recv_async(token, previous, 1);
    if (c.rank() != 0) {
      received.then([&](const Status&) { sent = c.send_async(token, next, 1); });
    }
    EXPECT_OK(received.wait());
    if (c.rank() != 0) EXPECT_OK(sent.wait());
    EXPECT_EQ(token[0], 7);
  });
}

TEST_P(CommunicatorConformance, ProgramsOfMessagesByChance) {
  on_each([](Communicator& c) {
    if (c.size() == 1) return;
    EXPECT_EQ(test::run_programs(c, 0, is_long_form() ? 60 : 20), "");
  });
}

}  // namespace stormo::comm
