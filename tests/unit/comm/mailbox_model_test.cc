// The machine that matches messages, in virtual time: whatever happens first, no program hangs that
// receives what it sends, and every message comes where it belongs.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/comm/mailbox_world.h"

namespace stormo::comm::test {
namespace {

struct Case {
  int ranks = 2;
  std::vector<ProgramMessage> messages;
  Program program;
};

constexpr std::uint64_t kRecord = sizeof(MessageRecord);

/// Everything that may happen, in every order. Returns the number of orders.
std::int64_t explore(const Case& c, MailboxWorld::Options options, std::int64_t most) {
  std::vector<std::size_t> path;  // which of the steps, at each point
  std::int64_t orders = 0;
  for (;;) {
    MailboxWorld world(c.ranks, c.messages, c.program, options);
    std::vector<std::size_t> choices;
    for (std::size_t at = 0;; ++at) {
      const auto steps = world.steps();
      if (steps.empty()) break;
      if (at == path.size()) path.push_back(0);
      choices.push_back(steps.size());
      steps[path[at]]();
    }
    EXPECT_TRUE(world.is_complete()) << world.stuck();
    world.expect_delivered();
    ++orders;
    if (testing::Test::HasFailure() || orders == most) return orders;
    while (!path.empty() && path.back() + 1 == choices[path.size() - 1]) path.pop_back();
    if (path.empty()) return orders;
    ++path.back();
  }
}

/// One order, by chance. `short_has_room`: in its channel, whenever it is sent at once.
void run_by_chance(const Case& c, MailboxWorld::Options options, std::mt19937_64& chance,
                   bool short_has_room = false) {
  MailboxWorld world(c.ranks, c.messages, c.program, options);
  for (auto steps = world.steps(); !steps.empty(); steps = world.steps()) {
    steps[chance() % steps.size()]();
    if (short_has_room) world.expect_room_for_short();
  }
  EXPECT_TRUE(world.is_complete()) << world.stuck();
  world.expect_delivered();
}

/// Short ones are sent at once, as long as the window is open.
constexpr Matching::Options kShort{.eager_bytes = 4, .eager_window = 2 * (kRecord + 4)};

/// `capacity`: records.
MailboxWorld::Options options(std::size_t capacity, bool by_memory) {
  return {.matching = kShort, .capacity = capacity * (kRecord + 4), .by_memory = by_memory};
}
/// A channel has room for all that a rank may send ahead, and for a few records more.
MailboxWorld::Options roomy(bool by_memory) {
  constexpr Matching::Options kWindow{.eager_bytes = 4, .eager_window = 4 * (kRecord + 4)};
  return {.matching = kWindow, .capacity = 6 * (kRecord + 4), .by_memory = by_memory};
}

/// Both ranks send first, in batches that the other receives backwards.
Case crossing(std::int64_t bytes, std::uint32_t tags) {
  Case c{.ranks = 2, .messages = {}, .program = Program(2)};
  for (Rank r = 0; r < 2; ++r) c.program[static_cast<std::size_t>(r)].resize(1);
  for (std::uint32_t t = 0; t < tags; ++t) {
    for (Rank r = 0; r < 2; ++r) {
      c.messages.push_back({.from = r, .to = 1 - r, .tag = t, .bytes = bytes});
    }
  }
  for (Rank r = 0; r < 2; ++r) {
    auto& calls = c.program[static_cast<std::size_t>(r)][0];
    for (std::size_t i = 0; i < c.messages.size(); ++i) {
      if (c.messages[i].from == r) calls.push_back({.sends = true, .message = i});
    }
    for (std::size_t i = c.messages.size(); i-- > 0;) {
      if (c.messages[i].to == r) calls.push_back({.sends = false, .message = i});
    }
  }
  return c;
}

TEST(MailboxModel, NoOrderHangsOrMixesMessages) {
  std::int64_t orders = 0;
  for (const bool by_memory : {true, false}) {
    for (const std::int64_t bytes : {1, 9}) {
      orders += explore(crossing(bytes, 1), options(1, by_memory), -1);
      orders += explore(crossing(bytes, 2), options(1, by_memory), 6'000);
    }
  }
  EXPECT_GT(orders, 10'000);
}

TEST(MailboxModel, OneReceivesFromWhoeverSends) {
  Case c{.ranks = 3, .messages = {}, .program = Program(3)};
  for (auto& rounds : c.program) rounds.resize(1);
  for (Rank r = 1; r < 3; ++r) {
    c.program[static_cast<std::size_t>(r)][0].push_back(
        {.sends = true, .message = c.messages.size()});
    c.program[0][0].push_back({.sends = false, .message = c.messages.size()});
    c.messages.push_back({.from = r, .to = 0, .tag = 5, .bytes = 9, .any_source = true});
  }
  for (const bool by_memory : {true, false}) {
    EXPECT_GT(explore(c, options(1, by_memory), -1), 40);
  }
}

/// Rounds of messages between all, which each rank posts in an order of its own. All of one
/// receiver and tag have the same size, and are received from their senders, or all from whoever
/// sends.
Case by_chance(std::mt19937_64& chance) {
  const auto below = [&](std::uint64_t n) { return static_cast<int>(chance() % n); };
  Case c;
  c.ranks = 2 + below(3);
  const auto ranks = static_cast<std::uint64_t>(c.ranks);
  const int rounds = 1 + below(4);
  c.program.assign(ranks, std::vector<std::vector<ProgramCall>>(static_cast<std::size_t>(rounds)));
  std::map<std::pair<Rank, std::uint32_t>, std::pair<std::int64_t, bool>> forms;
  for (int round = 0; round < rounds; ++round) {
    for (int n = below(13); n > 0; --n) {
      ProgramMessage m{.from = below(ranks), .to = below(ranks - 1)};
      m.to += m.to >= m.from ? 1 : 0;
      // the tags of a round are its own: a receive of any sender must not take one of a later round
      m.tag = static_cast<std::uint32_t>(3 * round + below(3));
      const auto [form, is_new] =
          forms.try_emplace({m.to, m.tag}, std::pair(below(12), below(2) == 0));
      m.bytes = form->second.first;
      m.any_source = form->second.second;
      const std::size_t i = c.messages.size();
      c.messages.push_back(m);
      for (const bool sends : {true, false}) {
        auto& calls = c.program[static_cast<std::size_t>(sends ? m.from : m.to)]
                               [static_cast<std::size_t>(round)];
        calls.insert(calls.begin() + below(calls.size() + 1), {.sends = sends, .message = i});
      }
    }
  }
  return c;
}

TEST(MailboxModel, ProgramsByChanceComeToAnEnd) {
  for (std::uint64_t seed = 0; seed < 4000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 chance(seed);
    const Case c = by_chance(chance);
    run_by_chance(c, options(1 + seed % 3, seed % 2 == 0), chance);
  }
}

/// Rounds of short messages, half of the window to each rank at most, which are sent before a
/// barrier and received after it; now and then of long ones.
Case with_barriers(std::mt19937_64& chance) {
  const auto below = [&](std::uint64_t n) { return static_cast<int>(chance() % n); };
  Case c;
  c.ranks = 2 + below(3);
  const auto ranks = static_cast<std::uint64_t>(c.ranks);
  c.program.resize(ranks);
  const auto add_round = [&] {
    for (auto& rounds : c.program) rounds.emplace_back();
  };
  for (std::uint32_t round = 0; round < 4; ++round) {
    const std::size_t first = c.messages.size();
    const bool are_short = below(3) > 0;
    std::map<std::pair<Rank, Rank>, int> ahead;
    for (int n = below(9); n > 0; --n) {
      ProgramMessage m{.from = below(ranks), .to = below(ranks - 1), .tag = round};
      m.to += m.to >= m.from ? 1 : 0;
      m.bytes = are_short ? (chance() % 2 == 0 ? 0 : 4) : 9;
      m.tag = 2 * round + (m.bytes == 4 ? 1 : 0);
      if (++ahead[{m.from, m.to}] <= 2) c.messages.push_back(m);
    }
    for (const bool sends : {true, false}) {
      if (sends || are_short) add_round();
      for (std::size_t i = first; i < c.messages.size(); ++i) {
        const Rank who = sends ? c.messages[i].from : c.messages[i].to;
        c.program[static_cast<std::size_t>(who)].back().push_back({.sends = sends, .message = i});
      }
      if (!sends || are_short) {
        add_round();
        for (auto& rounds : c.program) rounds.back().push_back({.is_barrier = true});
      }
    }
  }
  return c;
}

TEST(MailboxModel, ShortMessagesArePassedByBarriers) {
  for (std::uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 chance(seed);
    const Case c = with_barriers(chance);
    run_by_chance(c, roomy(seed % 2 == 0), chance, /*short_has_room=*/true);
  }
}

/// However many are sent: who is not sent at once waits for its receive.
TEST(MailboxModel, WhatIsSentAtOnceHasRoom) {
  for (const std::int64_t bytes : {0, 4}) {
    Case c{.ranks = 2, .messages = {}, .program = Program(2)};
    for (std::size_t i = 0; i < 12; ++i) {
      c.messages.push_back({.from = 0, .to = 1, .bytes = bytes});
      c.program[0].push_back({{.sends = true, .message = i}});
      c.program[1].push_back({{.sends = false, .message = i}});
    }
    for (std::uint64_t seed = 0; seed < 500 && !HasFailure(); ++seed) {
      std::mt19937_64 chance(seed);
      run_by_chance(c, roomy(seed % 2 == 0), chance, /*short_has_room=*/true);
    }
  }
}

Matching::Send send_of(const std::vector<std::byte>& data, std::uint32_t tag = 1) {
  return {.to = 1, .tag = tag, .count = static_cast<std::int64_t>(data.size()), .bytes = data};
}

TEST(Matching, SendsAheadUpToTheWindowOnly) {
  Matching sender(2, kShort), receiver(2, kShort);
  Matching::Id id = 1;
  const std::vector<std::byte> data(4);
  Matching::Effects out;
  for (int i = 0; i < 3; ++i) sender.send(id++, send_of(data), out);
  ASSERT_EQ(out.records.size(), 3U);
  using enum MessageRecord::Kind;
  EXPECT_EQ(out.records[1].record.kind, kEager);
  EXPECT_EQ(out.records[2].record.kind, kReadyToSend);  // the window is full

  std::vector<std::byte> got(4);
  Matching::Effects answers;
  ASSERT_TRUE(receiver.arrived(0, out.records[0].record, data, answers).ok());
  receiver.receive(1, {.from = 0, .tag = 1, .count = 4, .bytes = got}, answers);
  ASSERT_EQ(answers.records.size(), 1U);  // half of the window is open again
  ASSERT_TRUE(sender.arrived(1, answers.records[0].record, {}, out).ok());
  sender.send(id++, send_of(data), out);
  EXPECT_EQ(out.records.back().record.kind, kEager);
}

TEST(Matching, SaysWhatDoesNotFit) {
  Matching receiver(2);
  std::vector<std::byte> got(8);
  Matching::Effects out;
  receiver.receive(1, {.from = 0, .tag = 7, .dtype = DType::kFloat32, .count = 2, .bytes = got},
                   out);
  const MessageRecord other{.dtype = DType::kInt64, .tag = 7, .count = 1, .bytes = 8};
  ASSERT_TRUE(receiver.arrived(0, other, std::vector<std::byte>(8), out).ok());
  EXPECT_EQ(out.mismatch.code(), Code::kMismatch);
  EXPECT_EQ(out.mismatch.message(), "rank 0 sent 1 int64 with tag 7, where 2 float32 are expected");
  EXPECT_TRUE(out.completions.empty());
}

TEST(Matching, RefusesRecordsOfNoMessage) {
  Matching m(2);
  Matching::Effects out;
  using enum MessageRecord::Kind;
  for (const auto kind : {kClearToSend, kData, kDone, kCredit}) {
    EXPECT_EQ(m.arrived(1, {.kind = kind, .bytes = 1, .send = 3}, {}, out).code(), Code::kCorrupt);
  }
  // a message to another rank is none of its business
  Matching three(3, kShort);
  const std::vector<std::byte> data(9);
  const Matching::Id id = 7;
  three.send(id, send_of(data), out);
  EXPECT_EQ(three.arrived(2, {.kind = kDone, .send = id}, {}, out).code(), Code::kCorrupt);
  EXPECT_TRUE(three.arrived(1, {.kind = kClearToSend, .send = id}, {}, out).ok());
  EXPECT_EQ(three.arrived(1, {.kind = kClearToSend, .send = id}, {}, out).code(), Code::kCorrupt);
}

/// Its bytes may come in pieces of any size, but only in their order, and as many as it has.
TEST(Matching, PiecesOfAMessageComeInTheirOrder) {
  Matching m(2);
  std::vector<std::byte> got(9);
  Matching::Effects out;
  using enum MessageRecord::Kind;
  ASSERT_TRUE(
      m.arrived(1, {.kind = kReadyToSend, .count = 9, .bytes = 9, .send = 3}, {}, out).ok());
  const MessageRecord first{.kind = kData, .count = 0, .bytes = 4, .send = 3, .receive = 1};
  MessageRecord second = first, too_long = first;
  second.count = 4, second.bytes = 5;
  too_long.bytes = 10;
  EXPECT_EQ(m.landing(1, first).status().code(), Code::kCorrupt);  // not asked for
  m.receive(1, {.from = 1, .count = 9, .bytes = got}, out);
  ASSERT_EQ(out.fetches.size(), 1U);
  m.clear(out.fetches[0], out);
  EXPECT_EQ(m.landing(1, second).status().code(), Code::kCorrupt);
  EXPECT_EQ(m.landing(1, too_long).status().code(), Code::kCorrupt);
  const auto one = m.landing(1, first);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(m.landing(1, first).status().code(), Code::kCorrupt);
  const auto two = m.landing(1, second);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(one->to.data(), got.data());
  EXPECT_EQ(two->to.data(), got.data() + 4);
  m.fetched(*two, false, out);  // they may be there in any order
  EXPECT_TRUE(out.completions.empty());
  m.fetched(*one, false, out);
  EXPECT_EQ(out.completions.size(), 1U);
  EXPECT_EQ(m.landing(1, second).status().code(), Code::kCorrupt);
}

TEST(Matching, ChannelsAreApart) {
  Matching receiver(2);
  std::vector<std::byte> got(1);
  Matching::Effects out;
  receiver.receive(1, {.from = 0, .channel = 1, .tag = 1, .count = 1, .bytes = got}, out);
  ASSERT_TRUE(
      receiver.arrived(0, {.tag = 1, .count = 1, .bytes = 1}, std::vector<std::byte>(1), out).ok());
  EXPECT_TRUE(out.completions.empty());
}

}  // namespace
}  // namespace stormo::comm::test
