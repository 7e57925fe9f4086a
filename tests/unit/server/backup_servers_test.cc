// Runs in which each server has a copy of its predecessor's shards: what survives the loss of one.
#include <csignal>

#include <atomic>
#include <cstring>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/message/data_message.h>

#include "breaking_proxy.h"
#include "server_run.h"
#include "tests/sanitized.h"

namespace stormo::server {
namespace {

using protocol::PushAction;
using std::chrono::seconds;
using testing::HasSubstr;
using Kind = protocol::PolicyOptions::Kind;

/// What all workers of a run have seen and done.
struct Account {
  std::mutex mutex;
  std::set<std::pair<int, std::uint64_t>> tasks;
  std::atomic<int> steps{0};
  std::atomic<std::int64_t> longest_ns{0};
};

/// Does steps: a read and a push of each shard, and a turn of the ledger, `count` times.
void do_steps(Worker& me, std::uint64_t count, Account& account) {
  std::vector<std::uint64_t> versions(me.shards.size(), 0);
  TimePoint last = std::chrono::steady_clock::now();
  for (std::uint64_t step = 0; step < count; ++step) {
    const auto task = me.session->ledger().next({.samples = step > 0}).take_or_throw().task;
    ASSERT_TRUE(task);
    {
      const std::lock_guard lock(account.mutex);
      EXPECT_TRUE(account.tasks.emplace(task->part, task->step).second) << "a task came twice";
    }
    for (const auto& shard : me.shards) shard->begin_read();
    for (std::size_t s = 0; s < me.shards.size(); ++s) {
      const auto view = me.shards[s]->read().take_or_throw();
      EXPECT_GE(view.version, versions[s]) << "shard " << s;
      versions[s] = view.version;
      const auto* w = reinterpret_cast<const double*>(view.pieces[0]);
      EXPECT_EQ(w[0], -static_cast<double>(view.version));
      EXPECT_EQ(w[kShardElements - 1], w[0]);
    }
    for (std::size_t s = 0; s < me.shards.size(); ++s) {
      const auto pushed = me.push(s, step, 1, Deadline::never()).take_or_throw();
      EXPECT_NE(pushed.decision.action, PushAction::kRepeated);
    }
    const TimePoint now = std::chrono::steady_clock::now();
    account.longest_ns = std::max<std::int64_t>(account.longest_ns, (now - last).count());
    last = now;
    ++account.steps;
  }
  (void)me.session->ledger().next({.samples = 1}).take_or_throw();
}

class KilledServer : public testing::TestWithParam<std::tuple<Kind, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(All, KilledServer,
                         testing::Combine(testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp),
                                          testing::Range<std::uint64_t>(1, kSanitized ? 3 : 9)));

// Whichever server is killed at whatever moment: every push, read and task counts once.
TEST_P(KilledServer, CostsNothingThatWasAcknowledged) {
  const auto [policy, seed] = GetParam();
  constexpr int kWorkers = 3;
  constexpr std::uint64_t kSteps = 100;  // all that are dealt
  Rng rng(seed, "kills");
  const std::size_t count = 2 + seed % 2;
  ServersWithBackups servers(count);
  const RunTerms terms = counting_terms(kWorkers, policy, count);
  Account account;
  std::vector<std::thread> others;
  for (int w = 1; w < kWorkers; ++w) {
    others.emplace_back([&, w] {
      Worker me = Worker::begin(servers.options(w, kWorkers), terms);
      do_steps(me, kSteps, account);
      EXPECT_TRUE(me.session->finish().ok());
    });
  }
  Worker chief = Worker::begin(servers.options(0, kWorkers), terms);
  const std::size_t victim = rng.below(count);
  const int moment = static_cast<int>(5 + rng.below(250));
  std::thread killer([&] {
    EXPECT_TRUE(comes_true([&] { return account.steps >= moment; }));
    servers.at(victim).send_signal(SIGKILL);
  });
  do_steps(chief, kSteps, account);
  killer.join();
  for (std::thread& other : others) other.join();
  EXPECT_LT(account.longest_ns, Duration(seconds(30)).count());
  RecordProperty("longest_ms", static_cast<int>(account.longest_ns / 1'000'000));
  EXPECT_EQ(account.tasks.size(), kWorkers * kSteps);
  for (std::size_t s = 0; s < count; ++s) {
    const auto state = chief.shards[s]->state().take_or_throw();
    EXPECT_EQ(state.version, policy == Kind::kSync ? kSteps : kWorkers * kSteps);
    for (int w = 0; w < kWorkers; ++w) {
      EXPECT_EQ(state.worker(w).pushes, kSteps);
      EXPECT_EQ(state.worker(w).reads, kSteps);
    }
    EXPECT_EQ(chief.value(s), -static_cast<double>(state.version));
  }
  const auto turn = chief.session->ledger().look().take_or_throw();
  EXPECT_TRUE(turn.all_done);
  EXPECT_EQ(turn.totals.samples, static_cast<std::int64_t>(kWorkers * kSteps));
  EXPECT_TRUE(chief.session->finish().ok());
  for (std::size_t s = 0; s < count; ++s) {
    EXPECT_EQ(servers.at(s).outcome().code(), s == victim ? Code::kCancelled : Code::kOk);
  }
}

/// All arrays of a shard, its numbers of updates, its state, version and commit.
std::string contents(Shard& shard, std::size_t slots) {
  std::string out;
  const auto view = shard
                        .save([&](std::size_t piece, const PieceArrays& arrays) {
                          const std::size_t bytes = shard.pieces()[piece].bytes();
                          out.append(reinterpret_cast<const char*>(arrays.weights), bytes);
                          for (std::size_t s = 0; s < slots; ++s) {
                            out.append(reinterpret_cast<const char*>(arrays.slots[s]), bytes);
                          }
                          out += std::to_string(arrays.updates);
                        })
                        .take_or_throw();
  return out + encode(shard.state().take_or_throw()) + std::to_string(view.version) + " " +
         std::to_string(view.commit);
}

class Copies : public testing::TestWithParam<std::tuple<Kind, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(All, Copies,
                         testing::Combine(testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp,
                                                          Kind::kNSoftsync, Kind::kBackupWorkers,
                                                          Kind::kAverage),
                                          testing::Values(0, 1)));

// Gradients that are not exact in binary, momentum, a worker that leaves and joins, pending sums.
TEST_P(Copies, AreEqualToTheBit) {
  const auto [policy, victim] = GetParam();
  ServersWithBackups servers(2);
  RunTerms terms = small_terms(2, policy);
  terms.optimizer = {.kind = optim::Options::Kind::kAdam};
  if (policy == Kind::kAsync) terms.policy.compensation = protocol::Compensation::kDelay;
  if (policy == Kind::kSsp) terms.policy.compensation = protocol::Compensation::kAdaptiveDelay;
  Worker chief = Worker::begin(servers.options(0, 2), terms);
  Worker other = Worker::begin(servers.options(1, 2), terms);
  Rng rng(1, "gradients");
  std::vector<double> gradient(static_cast<std::size_t>(kShardElements));
  const auto step = [&](Worker& me, std::uint64_t sequence) {
    for (const auto& shard : me.shards) {
      (void)shard->read(Deadline::after(kLong)).take_or_throw();
      for (double& g : gradient) g = rng.uniform() - 0.3;
      const std::vector<PushedPiece> pieces(shard->pieces().size(), {.array = gradient.data()});
      (void)shard->push({.pieces = pieces, .lr = 0.1, .gradient_scale = 0.7, .sequence = sequence})
          .take_or_throw();
    }
  };
  for (std::uint64_t i = 0; i < 6; ++i) {
    step(chief, i);
    step(other, i);
    if (i != 3) continue;
    for (const auto& shard : other.shards) {
      (void)shard->leave(0.2).take_or_throw();
      (void)shard->join().take_or_throw();
    }
  }
  step(chief, 6);  // where an update needs both, this one is pending
  std::vector<std::string> before;
  for (const auto& shard : chief.shards) before.push_back(contents(*shard, 2));
  servers.at(victim).send_signal(SIGKILL);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_TRUE(contents(*chief.shards[s], 2) == before[s]) << "shard " << s;
  }
  step(other, 6);
  EXPECT_GE(chief.shards[0]->state().take_or_throw().version, 3u);
  EXPECT_TRUE(other.session->finish().ok());
  EXPECT_TRUE(chief.session->finish().ok());
  EXPECT_TRUE(servers.at(1 - victim).outcome().ok());
}

TEST(BackupServers, AnExchangeIsMadeOnceWhenTheServerIsKilled) {
  ServersWithBackups servers(2);
  Worker me = Worker::begin(servers.options(0, 1), counting_terms(1, Kind::kAsync, 2));
  std::vector<double> own(static_cast<std::size_t>(kShardElements), 64);
  void* pieces[] = {own.data()};
  double x = 64, centre = 0;
  std::thread killer;
  for (std::uint64_t i = 0; i < 40; ++i) {
    if (i == 20) killer = std::thread([&] { servers.at(0).send_signal(SIGKILL); });
    own.assign(own.size(), x += 1);
    const auto made =
        me.shards[0]->elastic_average(pieces, 0.25, i, Deadline::never()).take_or_throw();
    EXPECT_EQ(made.decision.action, PushAction::kUpdate);
    const double d = 0.25 * (x - centre);
    x -= d;
    centre += d;
    EXPECT_THAT(own, testing::Each(x)) << "exchange " << i;
  }
  killer.join();
  EXPECT_EQ(me.value(0), centre);
}

// The one that was stopped finds, when it goes on, that another one has taken its place.
TEST(BackupServers, AServerThatWasStoppedEndsAndTheOtherGoesOn) {
  ServersWithBackups runs[2];
  side_by_side(2, [&](std::size_t victim) {
    ServersWithBackups& servers = runs[victim];
    Account account;
    const RunTerms terms = counting_terms(2, Kind::kAsync, 2);
    std::thread other([&] {
      Worker me = Worker::begin(servers.options(1, 2), terms);
      do_steps(me, 100, account);
      EXPECT_TRUE(me.session->finish().ok());
    });
    // its limit is that of the servers for each other, too
    Worker chief = Worker::begin(servers.options(0, 2, kSilence), terms);
    std::thread stops([&] {
      EXPECT_TRUE(comes_true([&] { return account.steps >= 30; }));
      servers.at(victim).send_signal(SIGSTOP);
    });
    do_steps(chief, 100, account);
    stops.join();
    other.join();
    EXPECT_LT(account.longest_ns, Duration(seconds(30)).count());
    servers.at(victim).send_signal(SIGCONT);
    const Status ended = servers.at(victim).outcome();
    EXPECT_EQ(ended.code(), Code::kPeerLost);
    EXPECT_THAT(ended.message(), HasSubstr("another server took its shards over"));
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(chief.value(s), -200);
    EXPECT_TRUE(chief.session->finish().ok());
    EXPECT_TRUE(servers.at(1 - victim).outcome().ok());
  });
}

TEST(BackupServers, ASecondLossEndsTheRun) {
  ServersWithBackups servers(2);
  Worker chief = Worker::begin(servers.options(0, 1), counting_terms(1, Kind::kAsync, 2));
  (void)chief.push(0, 0).take_or_throw();
  for (const std::size_t victim : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_EQ(chief.value(0), -1);
    servers.at(victim).send_signal(SIGKILL);
  }
  for (std::size_t s = 0; s < 2; ++s) {
    const Status lost = chief.shards[s]->read(Deadline::after(kLong)).status();
    EXPECT_EQ(lost.code(), Code::kPeerLost);
    EXPECT_THAT(lost.message(), HasSubstr("; and its backup: the server at"));
  }
  EXPECT_EQ(chief.session->ledger().look().status().code(), Code::kPeerLost);
  EXPECT_EQ(chief.session->finish().code(), Code::kPeerLost);
}

// The chief hears of the loss from the other server, and not from its own connection.
TEST(BackupServers, ALossThatAnotherServerNoticesIsToldAsAnyOther) {
  ServersWithBackups servers(2);
  WorkerSession::Options options = servers.options(0, 1);
  BreakingProxy silent(options.servers[0], 1);
  silent.hold();
  options.servers[0] = silent.address();
  Worker chief = Worker::begin(options, counting_terms(1, Kind::kAsync, 2));
  silent.hide_ends();
  servers.at(0).send_signal(SIGKILL);
  EXPECT_EQ(chief.value(0), 0);
  servers.at(1).send_signal(SIGKILL);
  const std::string first = "the server at " + transport::to_string(options.servers[0]) +
                            " is lost: another server cannot reach it";
  const std::string second = "the server at " + transport::to_string(options.servers[1]) +
                             " is lost: its process has ended";
  EXPECT_EQ(chief.shards[0]->read(Deadline::after(kLong)).status().message(),
            first + "; and its backup: " + second);
  EXPECT_EQ(chief.shards[1]->read(Deadline::after(kLong)).status().message(),
            second + "; and its backup: " + first);
}

// The loss of a worker is known at both servers, and its steps are left to others.
TEST(BackupServers, WorkersAreLostAndComeBackOnEitherSide) {
  const RunTerms terms = counting_terms(3, Kind::kSync, 2);
  ServersWithBackups servers(2);
  const auto steps_for_ever = [&](int worker) {
    return WorkerProcess([&servers, terms, worker](const transport::HostPort&) {
      Worker me = Worker::begin(servers.options(worker, 3), terms);
      Account account;
      do_steps(me, 1000, account);
      return 0;
    });
  };
  WorkerProcess early = steps_for_ever(1), late = steps_for_ever(2);
  early.start(0);
  late.start(0);
  Worker chief = Worker::begin(servers.options(0, 3), terms);
  std::uint64_t sequence = 0;
  const auto step = [&] {
    for (std::size_t s = 0; s < 2; ++s) {
      (void)chief.value(s);
      (void)chief.push(s, sequence).take_or_throw();
    }
    ++sequence;
  };
  for (int i = 0; i < 10; ++i) step();
  early.send_signal(SIGKILL);
  for (int i = 0; i < 10; ++i) step();
  servers.at(0).send_signal(SIGKILL);
  for (int i = 0; i < 10; ++i) step();
  EXPECT_FALSE(chief.shards[0]->state().take_or_throw().worker(1).active);
  EXPECT_TRUE(chief.shards[0]->state().take_or_throw().worker(2).active);
  late.send_signal(SIGKILL);
  for (int i = 0; i < 10; ++i) step();
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_FALSE(chief.shards[s]->state().take_or_throw().worker(2).active);
    EXPECT_EQ(chief.value(s), -40);
  }
  // who comes now finds only one of the servers
  Worker again = Worker::begin(servers.options(1, 3), terms);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(again.shards[s]->join().take_or_throw().sequence, 40u);
  }
  (void)again.value(0);
  (void)again.push(0, 40).take_or_throw();
  (void)chief.push(0, 40).take_or_throw();
  EXPECT_EQ(chief.value(0), -41);
  EXPECT_TRUE(again.session->finish().ok());
  EXPECT_TRUE(chief.session->finish().ok());
  EXPECT_TRUE(servers.at(1).outcome().ok());
}

// The primary ends before it can say that a worker is lost.
TEST(BackupServers, AWorkerAndTheServerAreKilledTogether) {
  const RunTerms terms = counting_terms(2, Kind::kSync, 2);
  ServersWithBackups servers(2);
  WorkerProcess other([&](const transport::HostPort&) {
    Worker me = Worker::begin(servers.options(1, 2), terms);
    Account account;
    do_steps(me, 100, account);
    return 0;
  });
  other.start(0);
  Worker chief = Worker::begin(servers.options(0, 2), terms);
  for (std::uint64_t i = 0; i < 10; ++i) {
    if (i == 5) {
      servers.at(0).send_signal(SIGKILL);
      other.send_signal(SIGKILL);
    }
    for (std::size_t s = 0; s < 2; ++s) {
      (void)chief.value(s);
      (void)chief.push(s, i).take_or_throw();
    }
  }
  for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(chief.value(s), -10);
  // all that it did not do is left to others
  std::set<std::uint64_t> left;
  for (;;) {
    const auto task = chief.session->ledger().next({}).take_or_throw().task;
    if (!task) break;
    if (task->part == 1) left.insert(task->step);
  }
  EXPECT_GE(left.size(), 90u);
  EXPECT_EQ(*left.rbegin(), 99u);
  EXPECT_TRUE(chief.session->finish().ok());
  EXPECT_TRUE(servers.at(1).outcome().ok());
}

TEST(BackupServers, AWorkerThatWasStoppedComesBackAtBothServers) {
  const RunTerms terms = counting_terms(2, Kind::kAsync, 2);
  ServersWithBackups servers(2);
  WorkerProcess other([&](const transport::HostPort&) {
    Worker me = Worker::begin(servers.options(1, 2, kSilence), terms);
    for (std::uint64_t sequence = 0;; ++sequence) {
      Status status = me.shards[0]->read(Deadline::after(kLong)).status();
      if (status.ok()) status = me.push(0, sequence).status();
      if (status.ok()) continue;
      if (status.code() != Code::kPeerLost) return 2;
      const auto joined = me.shards[0]->join();
      if (!joined.ok()) return 3;
      sequence = joined->sequence - 1;
    }
  });
  other.start(0);
  Worker chief = Worker::begin(servers.options(0, 2), terms);
  const auto state = [&] { return chief.shards[0]->state().take_or_throw().worker(1); };
  const auto pushes_more = [&] {
    const std::uint64_t before = state().pushes;
    return comes_true([&] { return state().pushes > before + 3; });
  };
  EXPECT_TRUE(pushes_more());
  other.send_signal(SIGSTOP);
  EXPECT_TRUE(comes_true([&] { return !state().active; }));
  other.send_signal(SIGCONT);
  EXPECT_TRUE(comes_true([&] { return state().active; }));
  EXPECT_TRUE(pushes_more());
  servers.at(0).send_signal(SIGKILL);
  EXPECT_TRUE(pushes_more());
  EXPECT_TRUE(chief.session->finish().ok());
}

TEST(BackupServers, NeedTwoServersAndWorkersThatAgree) {
  const Deadline by = Deadline::after(kLong);
  ServersWithBackups servers(3);
  WorkerSession::Options one = servers.options(0, 2);
  one.servers.resize(1);
  EXPECT_EQ(WorkerSession::connect(one, by).status().code(), Code::kInvalidArgument);
  const auto chief = WorkerSession::connect(servers.options(0, 2), by).take_or_throw();
  WorkerSession::Options without = servers.options(1, 2);
  without.backups = false;
  const Status refused = WorkerSession::connect(without, by).status();
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_THAT(refused.message(), HasSubstr("and a backup at 127.0.0.1:"));
  WorkerSession::Options permuted = servers.options(1, 2);
  std::swap(permuted.servers[1], permuted.servers[2]);
  EXPECT_EQ(WorkerSession::connect(permuted, by).status().code(), Code::kMismatch);
}

}  // namespace
}  // namespace stormo::server
