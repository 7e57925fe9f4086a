#pragma once

#include <algorithm>

#include "tests/conformance/communicator_conformance.h"

/// For groups whose ranks see each other's Arena inside a host.
namespace stormo::comm {

/// Every rank writes a block; its local peers read it, and answer in it.
inline void exchange_through_arenas(Communicator& c) {
  constexpr std::int64_t kCount = 5000;
  const auto value = [](int rank, std::int64_t i) { return (rank + 1) * 1'000'000 + i; };
  const auto values_of = [&](int rank) {
    std::vector<std::int64_t> v;
    for (std::int64_t i = 0; i < kCount; ++i) v.push_back(value(rank, i));
    return v;
  };
  // the blocks of different ranks lie at different offsets
  const Memory<std::byte> gap(c, std::vector<std::byte>(100'000 * (1 + std::size_t(c.rank()))),
                              true);
  Memory<std::int64_t> mine(c, values_of(c.rank()), true);
  std::int64_t offset = static_cast<std::int64_t>(c.arena().offset_of(mine.span().data()));
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(c.size()));
  EXPECT_OK(c.all_gather(Buffer{&offset, 1, DType::kInt64}, offsets));

  const int first = c.rank() - c.local_rank();  // ranks are numbered host by host
  const auto block_of = [&](int peer) {
    const auto at = static_cast<std::uint64_t>(offsets[static_cast<std::size_t>(first + peer)]);
    return reinterpret_cast<std::int64_t*>(c.peer_address(peer, at));
  };
  EXPECT_EQ(block_of(c.local_rank()), mine.span().data());
  for (int peer = 0; peer < c.local_size(); ++peer) {
    const std::int64_t* block = block_of(peer);
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(std::ranges::equal(values_of(first + peer), std::span(block, kCount)))
        << "rank " << c.rank() << " of local rank " << peer;
  }
  EXPECT_OK(c.barrier());
  for (int peer = 0; peer < c.local_size(); ++peer) block_of(peer)[c.local_rank()] = -c.rank();
  EXPECT_OK(c.barrier());
  for (int peer = 0; peer < c.local_size(); ++peer) {
    EXPECT_EQ(mine.span()[static_cast<std::size_t>(peer)], -(first + peer));
  }
}

class CommunicatorSharedMemory : public CommunicatorConformance {};

TEST_P(CommunicatorSharedMemory, LocalPeersSeeEachOthersArenas) {
  on_each(exchange_through_arenas);
}

}  // namespace stormo::comm
