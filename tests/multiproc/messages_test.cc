// Programs of messages by chance, on ranks that are processes, of one host or two.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

struct Case {
  int ranks = 0, per_host = 0;
  std::vector<std::string> words = {};  // behind the worker's name
};

class Messages : public ::testing::TestWithParam<Case> {};

TEST_P(Messages, EveryReceiveGetsItsMessage) {
  const TemporaryFolder folder = TemporaryFolder::create("messages-test").take_or_throw();
  const auto text = [](int number) { return std::to_string(number); };
  const Case& c = GetParam();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < c.ranks; ++rank) {
    std::vector<std::string> argv{built("messages_worker")};
    argv.insert(argv.end(), c.words.begin(), c.words.end());
    ranks.push_back(std::make_unique<Process>(
        argv,
        std::vector<std::string>{
            "RANK=" + text(rank), "WORLD_SIZE=" + text(c.ranks),
            "LOCAL_RANK=" + text(rank % c.per_host), "LOCAL_WORLD_SIZE=" + text(c.per_host),
            "GROUP_RANK=" + text(rank / c.per_host), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
            "STORMO_RENDEZVOUS=file:" + folder.path().string() + "/job", "STORMO_INTERFACE=lo"}));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(std::chrono::seconds(60)), 0) << rank->err();
}

INSTANTIATE_TEST_SUITE_P(OnOneHost, Messages,
                         ::testing::Values(Case{3, 3, {"programs"}},
                                           Case{3, 3, {"programs", "unread"}}));
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, Messages, ::testing::Values(Case{4, 2, {"programs"}}));

}  // namespace
}  // namespace stormo::testing
