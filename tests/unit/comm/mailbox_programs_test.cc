// Programs of messages by chance, on ranks that are threads of this process, of one host or more.
// With processes: tests/multiproc/messages_test.cc.
#include <vector>

#include "tests/long.h"
#include "tests/unit/comm/message_programs.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm::test {
namespace {

/// Ranks of each host.
class MailboxPrograms : public testing::TestWithParam<std::vector<int>> {};

TEST_P(MailboxPrograms, EveryReceiveGetsItsMessage) {
  const std::uint32_t programs = is_long_form() ? 150 : 40;
  on_hosts(GetParam(), [&](Communicator& c) { EXPECT_EQ(run_programs(c, 0, programs), ""); });
}

TEST_P(MailboxPrograms, AllSendToAllAtOnce) {
  constexpr std::size_t kBytes = (kThreadSanitizer ? 2 : 16) << 20;
  on_hosts(GetParam(), [](Communicator& c) { EXPECT_EQ(run_all_to_all(c, kBytes), ""); });
}

INSTANTIATE_TEST_SUITE_P(OnOneHost, MailboxPrograms,
                         testing::Values(std::vector<int>{2}, std::vector<int>{3},
                                         std::vector<int>{5}));
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, MailboxPrograms,
                         testing::Values(std::vector<int>{1, 1}, std::vector<int>{2, 2},
                                         std::vector<int>{3, 2}));

}  // namespace
}  // namespace stormo::comm::test
