// What comes over a socket, cut anywhere; and what no peer that follows the rules sends.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include <stormo/comm/mailbox/network_peers.h>
#include <stormo/transport/tcp/frame.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = MessageRecord::Kind;

Bytes data_of(std::size_t size, int first) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + 7 * i);
  return bytes;
}

/// Rank 0, whose peers 1 and 2 are this test.
class Line {
 public:
  explicit Line(bool checksum = false) : peers(lines(checksum)), matching_(3) {}

  void feed(Rank from, std::span<const std::byte> bytes) {
    ASSERT_EQ(
        ::send(ends_[static_cast<std::size_t>(from - 1)].get(), bytes.data(), bytes.size(), 0),
        static_cast<ssize_t>(bytes.size()));
  }
  MessageRecord numbered(Rank from, MessageRecord record) {
    record.checksum =
        NetworkPeers::checksum_of(record, numbers_[static_cast<std::size_t>(from - 1)]++);
    return record;
  }
  void feed(Rank from, const MessageRecord& record, std::span<const std::byte> payload = {}) {
    const MessageRecord sent = numbered(from, record);
    feed(from, std::as_bytes(std::span(&sent, 1)));
    if (!payload.empty()) feed(from, payload);
  }
  void end(Rank from) { ends_[static_cast<std::size_t>(from - 1)].reset(); }
  Status pull() { return peers.pull(matching_, out).status(); }
  void put(Rank to, const MessageRecord& record, std::span<const std::byte> payload = {}) {
    peers.put({.to = to, .record = record, .payload = payload});
  }
  Status push() { return peers.push(matching_, out).status(); }
  /// What has come to a peer.
  Bytes read(Rank to, std::size_t most) {
    Bytes bytes(most);
    const ssize_t n =
        ::recv(ends_[static_cast<std::size_t>(to - 1)].get(), bytes.data(), most, MSG_DONTWAIT);
    bytes.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return bytes;
  }
  void receive(Matching::Id id, Rank from, Bytes& to) {
    matching_.receive(
        id, {.from = from, .count = static_cast<std::int64_t>(to.size()), .bytes = to}, out);
  }
  /// Asks for the bytes of all long messages that were found.
  void clear() {
    for (const Matching::Fetch& f : std::exchange(out.fetches, {})) matching_.clear(f, out);
  }

  Matching::Effects out;

 private:
  MessageLines lines(bool checksum) {
    MessageLines made{.checksum = checksum};
    for (Rank peer = 1; peer < 3; ++peer) {
      int both[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
      made.sockets.emplace(peer, transport::Channel(Descriptor(both[0])));
      ends_.emplace_back(both[1]);
    }
    return made;
  }
  std::array<std::uint64_t, 2> numbers_{};
  std::vector<Descriptor> ends_;

 public:
  NetworkPeers peers;

 private:
  Matching matching_;
};

MessageRecord eager(std::size_t bytes) {
  return {.count = static_cast<std::int64_t>(bytes), .bytes = bytes};
}
MessageRecord offer(std::size_t bytes, Matching::Id send) {
  MessageRecord record = eager(bytes);
  record.kind = Kind::kReadyToSend;
  record.send = send;
  return record;
}
MessageRecord data(std::size_t bytes, Matching::Id send, Matching::Id receive) {
  MessageRecord record = offer(bytes, send);
  record.kind = Kind::kData;
  record.count = 0;
  record.receive = receive;
  return record;
}

TEST(NetworkPeers, TakesAStreamThatIsCutAnywhere) {
  for (const std::size_t piece : {1U, 3U, 55U, 56U, 57U, 200U, 9000U}) {
    SCOPED_TRACE(piece);
    Line line;
    std::vector<Bytes> sent, got;
    for (const std::size_t size : {0U, 5U, 3000U, 16384U, 40000U, 1U}) {
      sent.push_back(data_of(size, static_cast<int>(sent.size())));
      got.emplace_back(size);
    }
    for (std::size_t i = 0; i < got.size(); ++i) line.receive(i + 1, 1, got[i]);
    line.feed(1, eager(0));
    line.feed(1, eager(5), sent[1]);
    line.feed(1, eager(3000), sent[2]);
    line.feed(1, eager(16384), sent[3]);
    line.feed(1, offer(40000, 9));
    ASSERT_OK(line.pull());
    ASSERT_EQ(line.out.completions.size(), 4U);
    line.clear();
    Bytes rest;
    const auto append = [&](const MessageRecord& record, const Bytes& payload) {
      const auto head = std::as_bytes(std::span(&record, 1));
      rest.insert(rest.end(), head.begin(), head.end());
      rest.insert(rest.end(), payload.begin(), payload.end());
    };
    append(line.numbered(1, data(40000, 9, 5)), sent[4]);
    append(line.numbered(1, eager(1)), sent[5]);
    for (std::size_t at = 0; at < rest.size(); at += piece) {
      line.feed(1, std::span(rest).subspan(at, std::min(piece, rest.size() - at)));
      ASSERT_OK(line.pull());
    }
    EXPECT_EQ(line.out.completions.size(), got.size());
    EXPECT_EQ(got, sent);
  }
}

TEST(NetworkPeers, RefusesWhatBelongsToNoMessage) {
  const Bytes bytes(40000);
  const auto expect_corrupt = [&](const std::function<void(Line&)>& feed) {
    Line line;
    Bytes got(bytes.size());
    line.receive(1, 1, got);
    line.feed(1, offer(bytes.size(), 9));
    ASSERT_OK(line.pull());
    line.clear();
    feed(line);
    EXPECT_EQ(line.pull().code(), Code::kCorrupt);
  };
  expect_corrupt([&](Line& line) { line.feed(2, data(bytes.size(), 9, 1)); });  // another peer's
  expect_corrupt([&](Line& line) { line.feed(1, data(bytes.size() + 1, 9, 1)); });
  expect_corrupt([&](Line& line) { line.feed(1, data(bytes.size(), 9, 2)); });
  expect_corrupt([&](Line& line) {  // twice
    line.feed(1, data(bytes.size(), 9, 1), bytes);
    line.feed(1, data(bytes.size(), 9, 1), bytes);
  });
  expect_corrupt([&](Line& line) { line.feed(1, eager(16385)); });
  expect_corrupt([&](Line& line) { line.feed(1, {.kind = Kind::kCredit, .bytes = 1}); });
}

TEST(NetworkPeers, FindsChangedBytes) {
  for (const bool is_changed : {false, true}) {
    Line line(/*checksum=*/true);
    Bytes sent = data_of(5, 1), got(5);
    line.receive(1, 1, got);
    MessageRecord record = line.numbered(1, eager(5));
    record.checksum |= transport::checksum_of(sent) & ~std::uint64_t{0xffffffff};
    if (is_changed) sent[2] ^= std::byte{1};
    line.feed(1, std::as_bytes(std::span(&record, 1)));
    line.feed(1, sent);
    EXPECT_EQ(line.pull().code(), is_changed ? Code::kCorrupt : Code::kOk);
    EXPECT_EQ(line.out.completions.size(), is_changed ? 0U : 1U);
  }
}

/// Whoever computes one holds the lock of the mailbox.
TEST(NetworkPeers, EachPieceOfALongMessageHasAChecksum) {
  constexpr std::size_t kPiece = 256 << 10, kBytes = 2 * kPiece + 5;
  const Bytes sent = data_of(kBytes, 1);
  Line sender(/*checksum=*/true);
  sender.put(1, offer(kBytes, 9));
  sender.put(1, data(kBytes, 9, 1), sent);
  Bytes stream;
  while (sender.peers.is_busy()) {
    ASSERT_OK(sender.push());
    const Bytes part = sender.read(1, kBytes);
    stream.insert(stream.end(), part.begin(), part.end());
  }
  ASSERT_EQ(stream.size(), kBytes + 4 * sizeof(MessageRecord));
  for (const bool is_changed : {false, true}) {
    Line line(/*checksum=*/true);
    Bytes got(kBytes);
    line.receive(1, 1, got);
    if (is_changed) stream[stream.size() - kPiece] ^= std::byte{1};  // in the second piece
    line.feed(1, std::span(stream).first(sizeof(MessageRecord)));
    ASSERT_OK(line.pull());
    line.clear();
    Status outcome;
    for (std::size_t at = sizeof(MessageRecord); at < stream.size() && outcome.ok();) {
      const std::size_t bytes = std::min<std::size_t>(50'000, stream.size() - at);
      line.feed(1, std::span(stream).subspan(at, bytes));
      outcome = line.pull();
      at += bytes;
    }
    EXPECT_EQ(outcome.code(), is_changed ? Code::kCorrupt : Code::kOk) << outcome.to_string();
    EXPECT_EQ(line.out.completions.size(), is_changed ? 0U : 1U);
    EXPECT_EQ(got == sent, !is_changed);
  }
}

/// What it sends is what a Line takes.
TEST(NetworkPeers, SendsWhatWasPut) {
  Line line;
  const Bytes payload = data_of(3000, 1);
  line.put(1, eager(3000), payload);
  line.put(1, eager(0));
  EXPECT_TRUE(line.peers.is_busy());
  ASSERT_OK(line.push());
  EXPECT_FALSE(line.peers.is_busy());
  Bytes want;
  for (const MessageRecord& r : {line.numbered(1, eager(3000)), line.numbered(1, eager(0))}) {
    const auto head = std::as_bytes(std::span(&r, 1));
    want.insert(want.end(), head.begin(), head.end());
    if (r.bytes > 0) want.insert(want.end(), payload.begin(), payload.end());
  }
  EXPECT_EQ(line.read(1, want.size()), want);
}

/// It is dropped, and nobody waits for it; the others get theirs.
TEST(NetworkPeers, WhatGoesToOneThatHasEndedIsDropped) {
  for (const bool is_known : {false, true}) {
    Line line;
    line.end(1);
    if (is_known) ASSERT_OK(line.pull());
    const Bytes payload = data_of(5, 1);
    line.put(1, eager(5), payload);
    line.put(2, eager(5), payload);
    ASSERT_OK(line.push());
    EXPECT_FALSE(line.peers.is_busy());
    ASSERT_OK(line.pull());
    ASSERT_EQ(line.out.ended.size(), 1U);
    EXPECT_EQ(line.out.ended[0].rank, 1);
    line.put(1, eager(5), payload);
    EXPECT_FALSE(line.peers.is_busy());
    EXPECT_EQ(line.read(2, 61).size(), 61U);
  }
}

/// The stream would be cut inside of a record, and only its receiver would see that.
TEST(NetworkPeers, MemoryThatCannotBeReadIsAnError) {
  Line line;
  constexpr std::size_t kPage = 4096;
  void* const page = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  line.put(1, eager(kPage), {static_cast<const std::byte*>(page), kPage});
  const Status sent = line.push();
  EXPECT_FALSE(sent.ok());
  EXPECT_NE(sent.message().find("send to rank 1"), std::string::npos) << sent.to_string();
  ::munmap(page, kPage);
}

TEST(NetworkPeers, SettlesWhenAllHasArrivedOrNobodyIsThere) {
  for (const bool is_gone : {false, true}) {
    Line line;
    const Bytes payload = data_of(5, 1);
    line.put(1, eager(5), payload);
    ASSERT_OK(line.push());
    const auto begin = std::chrono::steady_clock::now();
    line.peers.settle(Deadline::after(std::chrono::milliseconds(50)));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
    if (is_gone) {
      line.end(1);
    } else {
      line.read(1, 61);
    }
    const auto again = std::chrono::steady_clock::now();
    line.peers.settle(Deadline::after(std::chrono::seconds(20)));
    EXPECT_LT(std::chrono::steady_clock::now() - again, std::chrono::seconds(15));
  }
}

TEST(NetworkPeers, FindsRecordsThatWereChangedOrAreNotTheNext) {
  for (const bool is_changed : {true, false}) {
    Line line;
    MessageRecord record = line.numbered(1, eager(0));
    if (is_changed) {
      record.tag ^= 4;
    } else {
      record = line.numbered(1, eager(0));  // the one behind
    }
    line.feed(1, std::as_bytes(std::span(&record, 1)));
    EXPECT_EQ(line.pull().code(), Code::kCorrupt);
  }
}

TEST(NetworkPeers, SaysOnceThatAPeerHasEndedAfterItsLastMessage) {
  auto line = std::make_unique<Line>();
  Bytes got(5);
  line->receive(1, 1, got);
  line->feed(1, eager(5), data_of(5, 1));
  line->end(1);
  for (int i = 0; i < 3; ++i) ASSERT_OK(line->pull());
  EXPECT_EQ(got, data_of(5, 1));
  ASSERT_EQ(line->out.ended.size(), 1U);
  EXPECT_EQ(line->out.ended[0].rank, 1);
  EXPECT_EQ(line->out.ended[0].why.code(), Code::kPeerLost);
}

}  // namespace
}  // namespace stormo::comm
