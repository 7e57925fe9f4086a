// Memory of a failed operation is the survivors' alone: a rank that was stopped in the middle of
// it, and is continued later, changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <stormo/transport/store/store.h>

#include "process.h"
#include "tests/built.h"
#include "tests/conformance/at_once.h"

namespace stormo::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kAtOnce = 4;  // most of the time they wait

struct Scenario {
  int ranks;
  long count;  ///< of float
  std::string memory;
  std::string found_by;
};

void run(const Scenario& s) {
  SCOPED_TRACE(std::to_string(s.ranks) + " ranks, " + std::to_string(s.count) +
               " elements in the " + s.memory + ", found by the " + s.found_by);
  const auto secret = transport::Secret::random();
  auto store = transport::StoreServer::start({.secret = secret});
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int r = 0; r < s.ranks; ++r) {
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{built("fence_worker"), std::to_string(r), std::to_string(s.ranks),
                                 (*store)->address().text, std::to_string(s.count), s.memory,
                                 s.found_by},
        std::vector<std::string>{"STORMO_TEST_SECRET=" + secret.to_hex()}));
  }
  std::string said;
  for (int r = 0; r + 1 < s.ranks; ++r) {
    Process& survivor = *ranks[static_cast<std::size_t>(r)];
    EXPECT_EQ(survivor.wait(), 0) << survivor.out() << survivor.err();
    EXPECT_THAT(survivor.out(), HasSubstr("corrupted 0 of ")) << survivor.err();
    EXPECT_THAT(survivor.out(), HasSubstr(s.found_by == "deadline" ? "outcome deadline exceeded"
                                                                   : "outcome peer lost"));
    said += survivor.err();
  }
  Process& victim = *ranks.back();
  EXPECT_EQ(victim.wait(), 128 + SIGKILL) << victim.out() << victim.err();
  EXPECT_THAT(victim.out(), HasSubstr("stopping")) << "in the middle of the reduction";
  EXPECT_THAT(said, AllOf(HasSubstr("local rank " + std::to_string(s.ranks - 1)),
                          HasSubstr("was stopped when the group failed: ended")));
}

TEST(Fence, AContinuedRankWritesIntoNobodysMemory) {
  std::vector<Scenario> all;
  for (const char* memory : {"heap", "arena"}) {
    for (const long count : {5'003L, 60'013L, 600'011L, 1'500'007L, 4'000'037L}) {
      const bool by_heartbeat = count == 600'011;
      all.push_back({3, count, memory, by_heartbeat ? "heartbeat" : "deadline"});
    }
    all.push_back({2, 3'000'017, memory, "deadline"});
  }
  at_once(kAtOnce, all.size(), [&](std::size_t i) { run(all[i]); });
}

}  // namespace
}  // namespace stormo::testing
