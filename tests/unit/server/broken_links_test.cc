// A worker whose connections to the server break at any byte.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "breaking_proxy.h"
#include "server_run.h"

namespace stormo::server {
namespace {

using std::chrono::seconds;
using Kind = protocol::PolicyOptions::Kind;

class BrokenLinks : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, BrokenLinks, testing::Values(1, 2, 3));

// Every read, push, join and task counts once, whatever connection broke at whatever byte.
TEST_P(BrokenLinks, NothingIsLostAndNothingIsDoneTwice) {
  constexpr std::uint64_t kSteps = 16;
  ServedRun run;
  BreakingProxy proxy(run.address(), GetParam());
  Worker near = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  Worker me = Worker::begin(session_options(proxy.address(), 1, 2, kLong, false),
                            small_terms(2, Kind::kAsync));
  std::set<std::uint64_t> steps;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    for (const auto& shard : me.shards) shard->begin_read(Deadline::never());
    for (std::size_t s = 0; s < 2; ++s) (void)me.value(s);
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(me.push(s, i, 0.5).take_or_throw().decision.action, protocol::PushAction::kUpdate);
    }
    const auto task = me.session->ledger().next({.loss_sum = 1, .samples = 2}).take_or_throw().task;
    EXPECT_TRUE(task && steps.insert(task->step).second);
    if (i % 8 != 7) continue;
    (void)me.shards[0]->leave(1).take_or_throw();
    EXPECT_EQ(me.shards[0]->join().take_or_throw().sequence, i + 1);
  }
  EXPECT_GT(proxy.breaks(), 8);
  EXPECT_EQ(steps.size(), kSteps);
  double v = 0, w = 0;
  for (std::uint64_t i = 0; i < kSteps; ++i) w -= 0.5 * (v = 0.5 * v + 1);
  for (std::size_t s = 0; s < 2; ++s) {
    const auto state = near.shards[s]->state().take_or_throw();
    EXPECT_EQ(state.version, kSteps);
    EXPECT_EQ(state.worker(1).pushes, kSteps);
    if (s == 1) {
      EXPECT_EQ(state.worker(1).reads, kSteps);
    }
    EXPECT_NEAR(near.value(s), w, 1e-9);
  }
  EXPECT_EQ(near.session->ledger().look().take_or_throw().totals.samples,
            static_cast<std::int64_t>(2 * kSteps));
  proxy.hold();
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_TRUE(near.session->finish().ok());
  EXPECT_TRUE(run.outcome().ok()) << run.events();
  EXPECT_FALSE(run.has_event("lost")) << run.events();
}

TEST_P(BrokenLinks, AnExchangeIsMadeOnce) {
  ServedRun run;
  BreakingProxy proxy(run.address(), GetParam());
  Worker near = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  Worker me = Worker::begin(session_options(proxy.address(), 1, 2, kLong, false),
                            small_terms(2, Kind::kAsync));
  std::vector<double> own(static_cast<std::size_t>(kShardElements), 64);
  void* pieces[] = {own.data()};
  double x = 64, centre = 0;
  for (std::uint64_t i = 0; i < 15; ++i) {
    own.assign(own.size(), x += 1);
    (void)me.shards[0]->elastic_average(pieces, 0.25, i, Deadline::never()).take_or_throw();
    const double d = 0.25 * (x - centre);
    x -= d;
    centre += d;
    EXPECT_THAT(own, testing::Each(x)) << "exchange " << i;
  }
  EXPECT_GT(proxy.breaks(), 2);
  EXPECT_EQ(near.value(0), centre);
}

// The connections between the servers break as well as those of the worker. What state() gives is
// compared at both servers.
TEST_P(BrokenLinks, BothServersHaveTheSame) {
  constexpr std::uint64_t kSteps = 12;
  ServedRun first, second;
  BreakingProxy to_first(first.address(), GetParam()), to_second(second.address(), GetParam() + 9);
  WorkerSession::Options options = session_options(to_first.address(), 0, 1);
  options.servers.push_back(to_second.address());
  options.backups = true;
  Worker me = Worker::begin(options, small_terms(1, Kind::kAsync));
  std::set<std::uint64_t> steps;
  double v = 0, w = 0;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(me.value(s), w, 1e-9);
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(me.push(s, i, 0.5).take_or_throw().decision.action, protocol::PushAction::kUpdate);
      EXPECT_EQ(me.shards[s]->state().take_or_throw().version, i + 1);
    }
    w -= 0.5 * (v = 0.5 * v + 1);
    const auto task = me.session->ledger().next({.samples = 2}).take_or_throw().task;
    EXPECT_TRUE(task && steps.insert(task->step).second);
  }
  EXPECT_GT(to_first.breaks() + to_second.breaks(), 8);
  to_first.hold();
  to_second.hold();
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_TRUE(first.outcome().ok()) << first.events();
  EXPECT_TRUE(second.outcome().ok()) << second.events();
  EXPECT_FALSE(first.has_event("lost") || second.has_event("lost"));
}

// A line that is cut for longer than the timeout: each side takes the other for lost. The worker
// does not come back by itself, since it cannot know that the server lives. Another process does.
TEST(BrokenLinks, AWorkerWhoseLineIsCutForLongEndsAndANewOneTakesItsPlace) {
  ServedRun run;
  BreakingProxy proxy(run.address(), 1);
  proxy.hold();
  Worker chief = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  const WorkerSession::Options far = session_options(proxy.address(), 1, 2, kSilence, false);
  std::uint64_t acknowledged = 0;
  {
    Worker me = Worker::begin(far, small_terms(2, Kind::kAsync));
    while (acknowledged < 5) (void)me.push(0, acknowledged++, 0).take_or_throw();
    proxy.refuse(true);
    for (std::size_t i = 0; i < proxy.connections(); ++i) proxy.cut(i);
    EXPECT_EQ(me.push(0, acknowledged, 0).status().code(), Code::kPeerLost);
    EXPECT_EQ(me.shards[0]->join().status().code(), Code::kPeerLost);
  }
  EXPECT_TRUE(comes_true([&] { return run.has_event("worker 1 was lost: nothing was heard"); }));
  (void)chief.push(0, 0, 0).take_or_throw();
  proxy.refuse(false);
  Worker again = Worker::begin(far, small_terms(2, Kind::kAsync));
  EXPECT_TRUE(run.has_event("worker 1 is back, as a new process")) << run.events();
  const auto joined = again.shards[0]->join().take_or_throw();
  EXPECT_EQ(joined.sequence, acknowledged) << "what was acknowledged counts, and nothing else";
  (void)again.push(0, joined.sequence, 0).take_or_throw();
  EXPECT_EQ(chief.shards[0]->state().take_or_throw().worker(1).pushes, acknowledged + 1);
}

// Both live, the chief reaches both, and they do not reach each other: one of them goes on.
TEST(BrokenLinks, OfTwoServersApartOneGoesOn) {
  ServedRun first, second;
  BreakingProxy to_second(second.address(), 1);
  to_second.hold();
  WorkerSession::Options options = session_options(first.address(), 0, 1);
  options.servers.push_back(to_second.address());
  options.backups = true;
  Worker me = Worker::begin(options, small_terms(1, Kind::kAsync));
  std::uint64_t pushes = 0;
  const auto push_all = [&] {
    for (std::size_t s = 0; s < 2; ++s) {
      (void)me.push(s, pushes, 0).take_or_throw();
      (void)me.value(s);
    }
    ++pushes;
  };
  push_all();
  // the first one is the chief's, the last one too, with its requests; the others are of server 0
  const std::size_t last = to_second.connections() - 1;
  ASSERT_GE(last, 3u);
  to_second.refuse(true);
  for (std::size_t i = 1; i < last; ++i) to_second.cut(i);
  const TimePoint begin = std::chrono::steady_clock::now();
  // what is decided stays so when they reach each other again; the chief needs new connections
  std::thread opens([&] {
    const auto is_decided = [&] {
      return first.has_event("is lost") || second.has_event("is lost");
    };
    EXPECT_TRUE(comes_true(is_decided));
    to_second.refuse(false);
  });
  for (int i = 0; i < 10; ++i) push_all();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
  opens.join();
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(me.shards[s]->state().take_or_throw().worker(0).pushes, pushes);
  }
  const bool first_ends = second.has_event("server 0 is lost");
  ServedRun& loser = first_ends ? first : second;
  EXPECT_NE(first_ends, first.has_event("server 1 is lost"));
  const Status outcome = loser.outcome();
  EXPECT_EQ(outcome.code(), Code::kPeerLost);
  EXPECT_THAT(outcome.message(), testing::HasSubstr("another server took its shards over"));
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_TRUE((first_ends ? second : first).outcome().ok());
}

}  // namespace
}  // namespace stormo::server
