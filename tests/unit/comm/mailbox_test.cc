// Messages beside collectives, and at the end of a group: what a rank has sent arrives, what others
// do not need fails nobody.
#include <atomic>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kShort = 16 << 10;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

/// Ranks of each host; two ranks.
class TwoRanks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(OnOneHost, TwoRanks, testing::Values(std::vector<int>{2}));
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, TwoRanks, testing::Values(std::vector<int>{1, 1}));

/// Rank 0 sends, and goes on to a barrier; rank 1 receives after it. Again and again.
void send_ahead(const std::vector<int>& hosts, std::size_t bytes, std::size_t messages) {
  on_hosts(hosts, [&](Communicator& c) {
    Bytes data(bytes);
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; c.rank() == 0 && i < messages; ++i) {
        ASSERT_OK(c.send(data, 1, 7, soon()));
      }
      ASSERT_OK(c.barrier(soon()));
      for (std::size_t i = 0; c.rank() == 1 && i < messages; ++i) {
        ASSERT_OK(c.recv(data, 0, 7, soon()));
      }
      ASSERT_OK(c.barrier(soon()));
    }
  });
}

TEST_P(TwoRanks, WhatIsSentBeforeABarrierMayBeReceivedAfterIt) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kShort}) {
    SCOPED_TRACE(bytes);
    send_ahead(GetParam(), bytes, kSureAhead / (bytes + sizeof(MessageRecord)));
  }
}

}  // namespace
}  // namespace stormo::comm
