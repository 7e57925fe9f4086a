// A child that a rank forked: it has the rank's objects, and must not be taken for the rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);

std::vector<std::unique_ptr<Communicator>> join_two(const transport::StoreServer& store,
                                                    const transport::Secret& secret) {
  std::vector<std::unique_ptr<Communicator>> ranks(2);
  std::vector<std::thread> threads;
  for (Rank r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      transport::Rendezvous place;
      place.rank = place.local_rank = r;
      place.size = place.local_size = 2;
      place.host = "here";
      place.store = store.address();
      place.secret = secret;
      auto joined = join(place);
      EXPECT_TRUE(joined.ok()) << joined.status().to_string();
      if (joined.ok()) ranks[static_cast<std::size_t>(r)] = std::move(*joined);
    });
  }
  for (std::thread& t : threads) t.join();
  return ranks;
}

/// What `call` returned in the child; the number of the first that is wrong becomes its exit code.
class InChild {
 public:
  void expect_refused(const Status& s) {
    ++calls_;
    const bool clear =
        s.code() == Code::kInvalidArgument && s.message().find("forked") != std::string::npos;
    if (!clear && wrong_ == 0) {
      wrong_ = calls_;
      std::fprintf(stderr, "call %d in the child: %s\n", calls_, s.to_string().c_str());
    }
  }
  int exit_code() const { return wrong_; }

 private:
  int calls_ = 0;
  int wrong_ = 0;
};

/// Uses rank 0's group as if it were the rank, and destroys it.
[[noreturn]] void live_as_a_child(std::vector<std::unique_ptr<Communicator>>& ranks, Work pending) {
  ::alarm(30);  // hangs are found by the parent
  InChild child;
  Communicator& c = *ranks[0];
  float x = 1;
  const Buffer buffer = std::span(&x, 1);
  child.expect_refused(c.barrier(Deadline::after(kLong)));
  child.expect_refused(c.all_reduce(buffer, ReduceOp::kSum));
  child.expect_refused(c.all_reduce_async({&buffer, 1}, ReduceOp::kSum).wait());
  child.expect_refused(c.send(buffer, 1, 7));
  child.expect_refused(c.subgroup(std::vector<Rank>{0, 1}, Deadline::after(kLong)).status());
  child.expect_refused(c.status());
  c.set_section("in a child");
  c.fail({Code::kIo, "this is no affair of the parent's"});
  child.expect_refused(c.finalize(Deadline::after(kLong)));
  pending = Work();
  ranks.clear();
  ::_exit(child.exit_code());
}

TEST(Fork, AChildIsRefusedAndItsParentsJobGoesOn) {
  const auto secret = transport::Secret::random();
  auto store = transport::StoreServer::start({.secret = secret});
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  auto ranks = join_two(**store, secret);
  ASSERT_TRUE(ranks[0] && ranks[1]);
  // the lane's thread, which the child will not have, waits for rank 1
  std::vector<float> early(5'000, 1);
  const Buffer buffer = early;
  Work pending = ranks[0]->all_reduce_async({&buffer, 1}, ReduceOp::kSum);

  const pid_t child = ::fork();
  if (child == 0) live_as_a_child(ranks, std::move(pending));
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "number of the first call with another outcome";

  std::thread other([&] {
    std::vector<float> x(5'000, 2);
    EXPECT_OK(ranks[1]->all_reduce(x, ReduceOp::kSum, Deadline::after(kLong)));
    EXPECT_EQ(x, std::vector<float>(5'000, 3));
    EXPECT_OK(ranks[1]->finalize(Deadline::after(kLong)));
  });
  EXPECT_OK(pending.wait(Deadline::after(kLong)));
  EXPECT_EQ(early, std::vector<float>(5'000, 3));
  EXPECT_OK(ranks[0]->finalize(Deadline::after(kLong)));
  other.join();
}

}  // namespace
}  // namespace stormo::comm
