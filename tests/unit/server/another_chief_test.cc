// Runs with backups whose chief is lost: another worker becomes the chief, and no push is lost.
#include <csignal>

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server_run.h"

namespace stormo::server {
namespace {

using testing::HasSubstr;
using Kind = protocol::PolicyOptions::Kind;

constexpr int kWasChief = 10;  // exit code of a worker

void step(Worker& me, std::uint64_t& sequence) {
  for (std::size_t s = 0; s < me.shards.size(); ++s) {
    (void)me.value(s);
    (void)me.push(s, sequence, 1, Deadline::never()).take_or_throw();
  }
  ++sequence;
}

/// Does steps until none is left; `on_turn` is told after each turn. As in training, a worker
/// without a task leaves the shards: another one may have two tasks left, and would wait for it.
void do_steps(Worker& me, const std::function<void()>& on_turn = {}) {
  std::uint64_t sequence = 0;
  bool is_member = true;
  Ledger& ledger = me.session->ledger();
  Ledger::Turn turn = ledger.next({}).take_or_throw();
  while (!turn.all_done) {
    for (const auto& shard : me.shards) {
      if (turn.task && !is_member) (void)shard->join().take_or_throw();
      if (!turn.task && is_member) (void)shard->leave(1).take_or_throw();
    }
    is_member = turn.task.has_value();
    if (turn.task) step(me, sequence);
    if (on_turn) on_turn();
    turn = ledger.next({.samples = turn.task ? 1 : 0}).take_or_throw();
  }
  throw_if_error(ledger.leave());
}

/// Does steps until none is left, then waits for the end of the run, and makes it as the chief.
int work(Worker& me) {
  do_steps(me);
  Ledger& ledger = me.session->ledger();
  for (;;) {
    if (me.session->is_over()) return me.session->finish().ok() ? 0 : 1;
    const Ledger::Turn turn = ledger.look().take_or_throw();
    if (me.session->is_chief() && turn.others == 0) break;
  }
  return me.session->finish().ok() ? kWasChief : 1;
}

WorkerProcess worker_process(const WorkerSession::Options& options, const RunTerms& terms) {
  return WorkerProcess([options, terms](const transport::HostPort&) {
    Worker me = Worker::begin(options, terms);
    return work(me);
  });
}

/// A chief that steps for ever, and says why it cannot: 2 when another worker is the chief.
WorkerProcess endless_chief(const WorkerSession::Options& options, const RunTerms& terms) {
  return WorkerProcess([options, terms](const transport::HostPort&) {
    Worker me = Worker::begin(options, terms);
    try {
      for (std::uint64_t sequence = 0;;) step(me, sequence);
    } catch (const std::exception& e) {
      return std::string(e.what()).find("worker 1 keeps the run now") == std::string::npos ? 1 : 2;
    }
  });
}

/// Waits until the chief, worker 0, has done steps.
void see_steps(Worker& me) {
  EXPECT_TRUE(
      comes_true([&] { return me.shards[1]->state().take_or_throw().worker(0).pushes > 5; }));
}

class LostChief : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, LostChief, testing::Values(Kind::kAsync, Kind::kSync, Kind::kSsp));

TEST_P(LostChief, TheLowestWorkerThatIsLeftEndsTheRun) {
  ServersWithBackups servers;
  const RunTerms terms = counting_terms(3, GetParam());
  WorkerProcess chief = worker_process(servers.options(0, 3), terms);
  WorkerProcess next = worker_process(servers.options(1, 3), terms);
  chief.start(0);
  next.start(0);
  Worker me = Worker::begin(servers.options(2, 3), terms);
  int turns = 0;
  do_steps(me, [&] {
    if (++turns == 20) chief.send_signal(SIGKILL);
  });
  EXPECT_TRUE(comes_true([&] { return me.session->is_over(); }));
  EXPECT_FALSE(me.session->is_chief());
  for (std::size_t s = 0; s < 2; ++s) {
    const protocol::ShardState state = me.shards[s]->state().take_or_throw();
    std::uint64_t pushes = 0;
    for (int w = 0; w < 3; ++w) pushes += state.worker(w).pushes;
    EXPECT_GE(pushes, 299u) << "but for one step in flight";
    EXPECT_LE(pushes, 300u) << "nothing twice";
    if (GetParam() != Kind::kSync) {
      EXPECT_EQ(state.version, pushes);
    }
  }
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_EQ(chief.exit_code(), -1);
  EXPECT_EQ(next.exit_code(), kWasChief);
  for (std::size_t s = 0; s < 2; ++s) EXPECT_TRUE(servers.at(s).outcome().ok());
}

TEST(AnotherChief, DecidesWhichServersAreLost) {
  for (const std::size_t victim : {std::size_t{0}, std::size_t{1}}) {
    for (const bool server_first : {false, true}) {
      ServersWithBackups servers;
      WorkerProcess chief = endless_chief(servers.options(0, 2), counting_terms(2));
      chief.start(0);
      Worker me = Worker::begin(servers.options(1, 2), counting_terms(2));
      see_steps(me);
      std::uint64_t sequence = 0;
      if (server_first) servers.at(victim).send_signal(SIGKILL);
      step(me, sequence);
      EXPECT_FALSE(me.session->is_chief());
      chief.send_signal(SIGKILL);
      EXPECT_TRUE(comes_true([&] { return me.session->is_chief(); }));
      step(me, sequence);
      if (!server_first) servers.at(victim).send_signal(SIGKILL);
      step(me, sequence);
      for (std::size_t s = 0; s < 2; ++s) {
        const protocol::ShardState state = me.shards[s]->state().take_or_throw();
        EXPECT_EQ(state.worker(1).pushes, 3u);
        EXPECT_EQ(me.value(s), -static_cast<double>(state.version));
      }
      EXPECT_TRUE(me.session->finish().ok());
      EXPECT_TRUE(servers.at(1 - victim).outcome().ok());
    }
  }
}

TEST(AnotherChief, MayBeLostToo) {
  ServersWithBackups servers(3);
  const RunTerms terms = counting_terms(3);
  WorkerProcess first = endless_chief(servers.options(0, 3), terms);
  WorkerProcess second = endless_chief(servers.options(1, 3), terms);
  first.start(0);
  second.start(0);
  Worker me = Worker::begin(servers.options(2, 3), terms);
  see_steps(me);
  for (const WorkerProcess* chief : {&first, &second}) {
    EXPECT_FALSE(me.session->is_chief());
    chief->send_signal(SIGKILL);
    const int number = chief == &first ? 0 : 1;
    EXPECT_TRUE(
        comes_true([&] { return !me.shards[0]->state().take_or_throw().worker(number).active; }));
  }
  EXPECT_TRUE(comes_true([&] { return me.session->is_chief(); }));
  EXPECT_TRUE(me.session->finish().ok());
  for (std::size_t s = 0; s < 3; ++s) EXPECT_TRUE(servers.at(s).outcome().ok());
}

// One of another host cannot be ended, but it finds that all its calls fail.
TEST(AnotherChief, AStoppedChiefIsEndedFirstOrGivesUp) {
  ServersWithBackups here, elsewhere;
  const RunTerms terms = counting_terms(2);
  WorkerSession::Options far = elsewhere.options(0, 2, kSilence);
  far.share_memory = false;
  WorkerProcess ended = endless_chief(here.options(0, 2, kSilence), terms);
  WorkerProcess gives_up = endless_chief(far, terms);
  ended.start(0);
  gives_up.start(0);
  Worker of_ended = Worker::begin(here.options(1, 2), terms);
  Worker of_other = Worker::begin(elsewhere.options(1, 2), terms);
  for (Worker* me : {&of_ended, &of_other}) see_steps(*me);
  for (const WorkerProcess* chief : {&ended, &gives_up}) chief->send_signal(SIGSTOP);
  for (const Worker* me : {&of_ended, &of_other}) {
    EXPECT_TRUE(comes_true([&] { return me->session->is_chief(); }));
  }
  EXPECT_EQ(ended.exit_code(), -1) << "killed";
  gives_up.send_signal(SIGCONT);
  EXPECT_EQ(gives_up.exit_code(), 2);
  std::uint64_t sequence = 0;
  step(of_other, sequence);
  for (const Worker* me : {&of_ended, &of_other}) EXPECT_TRUE(me->session->finish().ok());
}

TEST(AnotherChief, ANewProcessOfTheFirstOneIsAWorkerAsOthers) {
  ServersWithBackups servers;
  WorkerProcess chief = endless_chief(servers.options(0, 2), counting_terms(2));
  chief.start(0);
  Worker me = Worker::begin(servers.options(1, 2), counting_terms(2));
  see_steps(me);
  chief.send_signal(SIGKILL);
  Worker again = Worker::begin(servers.options(0, 2), counting_terms(2));
  EXPECT_FALSE(again.session->opens());
  EXPECT_FALSE(again.session->is_chief());
  EXPECT_TRUE(comes_true([&] { return me.session->is_chief(); }));
  std::uint64_t sequence = again.shards[0]->join().take_or_throw().sequence;
  EXPECT_GT(sequence, 5u) << "nothing begins anew";
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_TRUE(comes_true([&] { return again.session->is_over(); }));
  EXPECT_TRUE(again.session->finish().ok());
  for (std::size_t s = 0; s < 2; ++s) EXPECT_TRUE(servers.at(s).outcome().ok());
}

TEST(AnotherChief, WithoutAnyWorkerTheRunEnds) {
  ServersWithBackups servers;
  WorkerProcess chief = endless_chief(servers.options(0, 2), counting_terms(2));
  chief.start(0);
  Worker me = Worker::begin(servers.options(1, 2), counting_terms(2));
  EXPECT_TRUE(me.session->finish().ok());
  chief.send_signal(SIGKILL);
  for (std::size_t s = 0; s < 2; ++s) {
    const Status outcome = servers.at(s).outcome();
    EXPECT_EQ(outcome.code(), Code::kPeerLost);
    EXPECT_THAT(outcome.message(), HasSubstr("no worker is left to take its place"));
  }
}

}  // namespace
}  // namespace stormo::server
