// The rings between the ranks of a host, and what is read of a sender that has given up.
#include <random>
#include <thread>
#include <vector>

#include <stormo/comm/mailbox/host_peers.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr std::size_t kMost = 16 << 10;

class HostPeersTest : public testing::Test {
 protected:
  HostPeersTest() {
    auto made = transport::make_inproc_fabric(2, nullptr, kTestArenaBytes);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    ranks_ = std::move(*made);
    for (const auto& rank : ranks_) {
      peers_.push_back(std::make_unique<HostPeers>(*rank.group, 0, transport::wait_policy(2, 2)));
    }
  }
  HostPeers& peers(Rank r) { return *peers_[static_cast<std::size_t>(r)]; }
  transport::HostGroup& group(Rank r) { return *ranks_[static_cast<std::size_t>(r)].group; }

  /// Until the other has rung: a ring that is lost is seen.
  void await_ring(Rank r, Peers::Watch& watch) {
    const auto begin = std::chrono::steady_clock::now();
    peers(r).sleep(watch, /*actively=*/false, Deadline::after(std::chrono::seconds(60)));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
  }

 private:
  std::vector<transport::InprocRank> ranks_;
  std::vector<std::unique_ptr<HostPeers>> peers_;
};

/// The sizes of a stream: most of the longest ones do not fit before the end of the ring.
std::vector<std::size_t> sizes() {
  std::mt19937_64 chance(3);
  std::vector<std::size_t> out(3'000);
  for (std::size_t& size : out) size = chance() % 3 == 0 ? chance() % (kMost + 1) : chance() % 64;
  return out;
}

TEST_F(HostPeersTest, RecordsPassAFullRingInOrder) {
  transport::RingHeader& ring = group(0).region()->ring_header(0, 1);
  ring.written = ring.read = 0U - (1U << 16);  // the counters pass 2^32
  const std::vector<std::size_t> all = sizes();
  std::vector<std::byte> payload(kMost + all.size());
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 31 >> 3);

  std::thread writer([&] {
    Matching matching(2);
    Matching::Effects out;
    for (std::size_t i = 0; i < all.size() && !HasFailure(); ++i) {
      peers(0).put({.to = 1,
                    .record = {.count = static_cast<std::int64_t>(all[i]), .bytes = all[i]},
                    .payload = std::span(payload).subspan(i, all[i])});
      if (i % 100 != 99 && i + 1 != all.size()) continue;
      while (peers(0).is_busy() && !HasFailure()) {
        Peers::Watch watch = peers(0).watch(kAnyRank);
        const Result<bool> moved = peers(0).push(matching, out);
        ASSERT_OK(moved.status());
        if (!*moved) await_ring(0, watch);
      }
    }
  });
  Matching matching(2);
  Matching::Effects out;
  std::vector<std::byte> got(kMost);
  for (std::size_t i = 0; i < all.size() && !HasFailure(); ++i) {
    const std::span<std::byte> to(got.data(), all[i]);
    matching.receive(i + 1, {.from = 0, .count = static_cast<std::int64_t>(all[i]), .bytes = to},
                     out);
    while (out.completions.empty() && !HasFailure()) {
      Peers::Watch watch = peers(1).watch(kAnyRank);
      const Result<bool> moved = peers(1).pull(matching, out);
      ASSERT_OK(moved.status());
      if (!*moved) await_ring(1, watch);
    }
    ASSERT_TRUE(out.mismatch.ok()) << out.mismatch.to_string();
    ASSERT_TRUE(std::ranges::equal(to, std::span(payload).subspan(i, all[i]))) << i;
    out = {};
  }
  writer.join();
}

/// It needs little room there, and what is sent behind it passes.
TEST_F(HostPeersTest, WhatCannotBeReadGoesThroughTheArenaInPieces) {
  std::vector<std::byte> sent(5'000'000), got(sent.size()), small(5);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 >> 3);
  const auto count = static_cast<std::int64_t>(sent.size());
  Matching sender(2), receiver(2);
  Matching::Effects out, in;
  receiver.receive(1, {.from = 0, .count = count, .bytes = got}, in);
  receiver.receive(2, {.from = 0, .tag = 7, .count = 5, .bytes = small}, in);
  sender.send(3, {.to = 1, .count = count, .bytes = sent}, out);
  ASSERT_OK(receiver.arrived(0, std::exchange(out.records, {}).at(0).record, {}, in));
  receiver.clear(std::exchange(in.fetches, {}).at(0), in);
  ASSERT_OK(sender.arrived(1, std::exchange(in.records, {}).at(0).record, {}, out));
  peers(0).put(std::exchange(out.records, {}).at(0));
  sender.send(4, {.to = 1, .tag = 7, .count = 5, .bytes = small}, out);
  peers(0).put(std::exchange(out.records, {}).at(0));

  const std::uint64_t before = group(0).arena().stats().in_use_bytes;
  std::uint64_t most = before;
  for (int turns = 0; turns < 1000 && in.completions.size() < 2; ++turns) {
    ASSERT_OK(peers(0).push(sender, out).status());
    most = std::max(most, group(0).arena().stats().in_use_bytes);
    if (turns % 10 < 5) continue;  // pieces wait for their receiver
    ASSERT_OK(peers(1).pull(receiver, in).status());
    for (const Matching::Fetch& f : std::exchange(in.fetches, {})) {
      ASSERT_TRUE(peers(1).can_read(f));
      ASSERT_OK(peers(1).bring(f, 0, f.to));
      receiver.fetched(f, /*by_memory=*/true, in);
    }
    for (const auto& o : std::exchange(in.records, {})) peers(1).put(o);
    ASSERT_OK(peers(1).push(receiver, in).status());
    ASSERT_OK(peers(0).pull(sender, out).status());
  }
  ASSERT_EQ(in.completions.size(), 2U);
  EXPECT_EQ(in.completions[0].operation, 2U);
  EXPECT_EQ(out.completions.size(), 2U);
  EXPECT_EQ(got, sent);
  EXPECT_LE(most - before, std::uint64_t{1} << 20);
  EXPECT_EQ(group(0).arena().stats().in_use_bytes, before);
  EXPECT_FALSE(peers(0).is_busy());
}

/// The same for those of one that leaves.
TEST_F(HostPeersTest, PiecesOfOneThatHasLeftAreDropped) {
  const std::vector<std::byte> sent(5'000'000);
  Matching matching(2);
  Matching::Effects out;
  const std::uint64_t before = group(0).arena().stats().in_use_bytes;
  peers(0).put({.to = 1, .record = {.kind = MessageRecord::Kind::kData}, .payload = sent});
  ASSERT_OK(peers(0).push(matching, out).status());
  EXPECT_GT(group(0).arena().stats().in_use_bytes, before);
  group(1).leave();
  ASSERT_OK(peers(0).pull(matching, out).status());
  EXPECT_EQ(out.ended.size(), 1U);
  EXPECT_EQ(group(0).arena().stats().in_use_bytes, before);
  EXPECT_FALSE(peers(0).is_busy());
}

/// Who still copies a long message sees that its sender has it no more.
TEST_F(HostPeersTest, WhatASenderHasAbandonedIsNoMessage) {
  const std::vector<std::byte> bytes(100);
  std::vector<std::byte> got(100);
  Matching::Fetch fetch{.from = 0, .receive = 1, .to = got};
  fetch.offer.address = reinterpret_cast<std::uintptr_t>(bytes.data());
  ASSERT_TRUE(peers(1).can_read(fetch));
  peers(0).abandon(/*offers=*/false);
  EXPECT_OK(peers(1).bring(fetch, 0, got));
  peers(0).abandon(/*offers=*/true);
  EXPECT_EQ(peers(1).bring(fetch, 0, got).code(), Code::kCancelled);
}

}  // namespace
}  // namespace stormo::comm
