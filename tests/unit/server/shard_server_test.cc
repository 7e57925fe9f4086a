// Servers and workers' sessions on one host.
#include <stormo/server/process/shard_server.h>

#include <poll.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/server/message/data_message.h>
#include <stormo/server/message/server_message.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/net/dialer.h>

#include "server_run.h"

namespace stormo::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Kind = protocol::PolicyOptions::Kind;

TEST(ShardServer, TheChiefMakesTheRunAndOthersWaitForIt) {
  ServedRun run;
  const RunTerms terms = small_terms(2, Kind::kAsync);
  std::vector<double> first(static_cast<std::size_t>(kShardElements), 7);
  std::thread other([&] {
    Worker worker = Worker::begin(session_options(run.address(), 1, 2), terms);
    EXPECT_EQ(worker.value(0), 7) << "the first values are there before the run is open";
    (void)worker.push(0, 0).take_or_throw();
    EXPECT_EQ(worker.session->ledger().terms().take_or_throw().steps, 5u);
    EXPECT_EQ(worker.session->ledger().next({}).take_or_throw().task,
              (StepTask{.part = 1, .step = 0}));
    EXPECT_TRUE(worker.session->finish().ok());
  });
  const Deadline by = Deadline::after(kLong);
  const auto chief =
      WorkerSession::connect(session_options(run.address(), 0, 2), by).take_or_throw();
  auto shards = chief->shards(terms, by).take_or_throw();
  ASSERT_EQ(shards.size(), 2u);
  throw_if_error(shards[0]->set(0, {.weights = reinterpret_cast<std::byte*>(first.data())}));
  throw_if_error(chief->ledger().deal({.first_step = 0, .steps = 5}));
  throw_if_error(chief->open());
  other.join();
  const auto view = shards[0]->read().take_or_throw();
  EXPECT_EQ(*reinterpret_cast<const double*>(view.pieces[0]), 6);
  EXPECT_TRUE(chief->finish().ok());
  EXPECT_TRUE(run.outcome().ok());
  EXPECT_EQ(run.events(), "");
}

TEST(ShardServer, SeveralServersHaveTheShardsInTurn) {
  ServedRun first, second;
  const Deadline by = Deadline::after(kLong);
  const auto chief =
      WorkerSession::connect({.servers = {first.address(), second.address()}}, by).take_or_throw();
  RunTerms terms = small_terms(1, Kind::kSync);
  terms.pieces.push_back(terms.pieces[0]);
  const auto shards = chief->shards(terms, by).take_or_throw();
  ASSERT_EQ(shards.size(), 3u);
  for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(shards[s]->pieces(), terms.pieces[s]);
  EXPECT_TRUE(chief->finish().ok());
  EXPECT_TRUE(first.outcome().ok());
  EXPECT_TRUE(second.outcome().ok());
}

TEST(ShardServer, AWorkerWithOtherTermsLearnsTheFirstDifference) {
  ServedRun run;
  const Worker chief =
      Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  const Deadline by = Deadline::after(kLong);
  const auto other =
      WorkerSession::connect(session_options(run.address(), 1, 2), by).take_or_throw();
  RunTerms terms = small_terms(2, Kind::kAsync);
  terms.optimizer.lr = 0.25;
  const Status refused = other->shards(terms, by).status();
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_THAT(refused.message(), HasSubstr("optimizer.lr is 0.25 at this worker, but 0.1"));
  terms.facts[0].second = "large";
  EXPECT_THAT(other->shards(terms, by).status().message(),
              HasSubstr("recipe is large at this worker, but small at worker 0"));
  EXPECT_TRUE(other->shards(small_terms(2, Kind::kAsync), by).ok());
  const Status crowd = WorkerSession::connect(session_options(run.address(), 2, 3), by).status();
  EXPECT_EQ(crowd.code(), Code::kMismatch);
  EXPECT_THAT(crowd.message(), HasSubstr("with 3 workers, but others take it"));
}

TEST(ShardServer, WithoutTheSecretNobodyComesIn) {
  ServedRun run(transport::Secret::random());
  WorkerSession::Options options = session_options(run.address(), 0, 1);
  options.secret = transport::Secret::random();
  const Status refused = WorkerSession::connect(options, Deadline::after(seconds(2))).status();
  EXPECT_EQ(refused.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(refused.message(), HasSubstr("secret"));
  EXPECT_TRUE(comes_true([&] { return run.has_event("wrong secret"); }));
}

TEST(ShardServer, ANumberThatIsTakenIsNotGivenTwice) {
  ServedRun run;
  const Worker chief =
      Worker::begin(session_options(run.address(), 0, 1), small_terms(1, Kind::kAsync));
  const Status refused =
      WorkerSession::connect(session_options(run.address(), 0, 1), Deadline::after(seconds(2)))
          .status();
  EXPECT_EQ(refused.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(refused.message(), HasSubstr("worker 0 is there already"));
}

TEST(ShardServer, ARunThatNeedsMoreMemoryIsRefused) {
  ServedRun run({}, /*memory=*/std::uint64_t{1} << 30);
  RunTerms terms = small_terms(1, Kind::kSync);
  terms.pieces[0][0].end = std::int64_t{1} << 30;  // of 8 bytes
  const Deadline by = Deadline::after(kLong);
  const auto chief =
      WorkerSession::connect(session_options(run.address(), 0, 1), by).take_or_throw();
  const Status refused = chief->shards(terms, by).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("need 48.0 GiB, but 1 GiB are available"));
  EXPECT_TRUE(chief->shards(small_terms(1, Kind::kSync), by).ok()) << "nothing was made";
}

// The server has ended since: what it said is more than that nobody listens.
TEST(ShardServer, AWorkerThatWasRefusedSaysSoInTheEnd) {
  std::optional<ServedRun> run(std::in_place);
  WorkerSession::Options options = session_options(run->address(), 0, 1);
  options.secret = transport::Secret::random();
  std::thread other([&] {
    const Status refused = WorkerSession::connect(options, Deadline::after(seconds(2))).status();
    EXPECT_THAT(refused.message(), HasSubstr("secret"));
  });
  EXPECT_TRUE(comes_true([&] { return run->has_event("wrong secret"); }));
  run.reset();
  other.join();
}

/// Pushes to shard 0 until it fails. Ends with 3 when it saw a torn version.
int push_for_ever(const WorkerSession::Options& options, Kind policy) {
  Worker me = Worker::begin(options, small_terms(options.workers, policy));
  for (std::uint64_t sequence = 0;; ++sequence) {
    try {
      (void)me.value(0);
    } catch (const Error& e) {
      return e.status().code() == Code::kCorrupt ? 3 : 2;
    }
    if (!me.push(0, sequence).ok()) return 2;
  }
}

/// A policy, and whether the other workers share the server's memory.
struct FaultCase {
  Kind policy;
  bool is_near;
};
constexpr FaultCase kFaultCases[] = {{Kind::kSync, true},   {Kind::kAsync, true},
                                     {Kind::kSsp, true},    {Kind::kSync, false},
                                     {Kind::kAsync, false}, {Kind::kSsp, false}};

std::string name_of(const FaultCase& c) {
  const auto policy = static_cast<std::size_t>(c.policy);
  return std::string(protocol::policy_names()[policy]) + (c.is_near ? " near" : " remote");
}

/// A chief whose steps others may wait for.
struct SteppingChief {
  Worker worker;
  std::uint64_t sequence = 0;

  void step() {
    (void)worker.value(0);
    (void)worker.push(0, sequence++).take_or_throw();
  }
  void step_until(const std::function<bool()>& is_true) {
    EXPECT_TRUE(comes_true([&] {
      step();
      return is_true();
    }));
  }
  std::uint64_t pushes_of(int other) const {
    return worker.shards[0]->state().take_or_throw().worker(other).pushes;
  }
};

/// Worker 2 is killed. Of one on another host only silence tells that it is lost.
void lose_a_killed_worker(const FaultCase& c, WorkerProcess& first, WorkerProcess& second) {
  ServedRun run;
  first.start(run.address().port);
  second.start(run.address().port);
  SteppingChief chief{
      Worker::begin(session_options(run.address(), 0, 3), small_terms(3, c.policy))};
  chief.step_until([&] { return chief.pushes_of(1) > 3 && chief.pushes_of(2) > 3; });
  second.send_signal(SIGKILL);
  chief.step_until([&] {
    return run.has_event(c.is_near ? "worker 2 was lost: its process has ended"
                                   : "worker 2 was lost: nothing was heard of it for");
  });
  for (int i = 0; i < 5; ++i) chief.step();
  EXPECT_FALSE(chief.worker.shards[0]->state().take_or_throw().worker(2).active);
  // all of its steps are left to others
  const auto turn = chief.worker.session->ledger().next({}).take_or_throw();
  EXPECT_EQ(turn.task, (StepTask{.part = 0, .step = 0}));
  EXPECT_TRUE(chief.worker.session->finish().ok());
  first.send_signal(SIGKILL);
  if (c.is_near) {  // else its silence would be waited for, too
    EXPECT_TRUE(run.outcome().ok());
  }
}

TEST(Faults, OthersGoOnWhenAWorkerIsKilled) {
  std::vector<WorkerProcess> first, second;
  for (const FaultCase& c : kFaultCases) {
    const auto other = [c](int worker, Duration timeout) {
      return WorkerProcess([=](const transport::HostPort& at) {
        return push_for_ever(session_options(at, worker, 3, timeout, c.is_near), c.policy);
      });
    };
    first.push_back(other(1, kLong));
    second.push_back(other(2, c.is_near ? kLong : kSilence));
  }
  side_by_side(std::size(kFaultCases), [&](std::size_t i) {
    SCOPED_TRACE(name_of(kFaultCases[i]));
    lose_a_killed_worker(kFaultCases[i], first[i], second[i]);
  });
}

/// Pushes until it is lost, then joins again, pushes once and leaves. 0: all of that went well.
int push_until_lost_and_come_back(const WorkerSession::Options& options, Kind policy) {
  Worker me = Worker::begin(options, small_terms(2, policy));
  for (std::uint64_t sequence = 0;; ++sequence) {
    Status status = me.shards[0]->read(Deadline::after(kLong)).status();
    if (status.ok()) status = me.push(0, sequence).status();
    if (status.ok()) continue;
    if (status.code() != Code::kPeerLost) return 2;
    const auto joined = me.shards[0]->join();
    if (!joined.ok()) return 3;
    (void)me.shards[0]->read(Deadline::after(kLong));
    const auto pushed = me.push(0, joined->sequence);
    return pushed.ok() && pushed->decision.action != protocol::PushAction::kRepeated &&
                   me.shards[0]->leave(1).ok() && me.session->finish().ok()
               ? 0
               : 4;
  }
}

/// Worker 1 is stopped for longer than it may be silent.
void lose_a_stopped_worker(const FaultCase& c, WorkerProcess& other) {
  ServedRun run;
  other.start(run.address().port);
  SteppingChief chief{
      Worker::begin(session_options(run.address(), 0, 2), small_terms(2, c.policy))};
  chief.step_until([&] { return chief.pushes_of(1) > 3; });
  other.send_signal(SIGSTOP);
  chief.step_until([&] { return run.has_event("worker 1 was lost: nothing was heard of it for"); });
  for (int i = 0; i < 10; ++i) chief.step();
  other.send_signal(SIGCONT);
  EXPECT_TRUE(comes_true([&] { return run.has_event("worker 1 is back"); })) << run.events();
  std::atomic<int> code{-2};
  std::thread ends([&] { code = other.exit_code(); });
  chief.step_until([&] { return code != -2; });
  EXPECT_EQ(code, 0) << "it joins again, and its push counts";
  ends.join();
}

TEST(Faults, AStoppedWorkerIsLostAndComesBack) {
  std::vector<WorkerProcess> others;
  for (const FaultCase& c : kFaultCases) {
    others.emplace_back([c](const transport::HostPort& at) {
      return push_until_lost_and_come_back(session_options(at, 1, 2, kSilence, c.is_near),
                                           c.policy);
    });
  }
  side_by_side(std::size(kFaultCases), [&](std::size_t i) {
    SCOPED_TRACE(name_of(kFaultCases[i]));
    lose_a_stopped_worker(kFaultCases[i], others[i]);
  });
}

TEST(ShardServer, TheLossOfTheChiefEndsTheRun) {
  WorkerProcess chief([](const transport::HostPort& at) {
    return push_for_ever(session_options(at, 0, 2), Kind::kAsync);
  });
  ServedRun run;
  chief.start(run.address().port);
  Worker other = Worker::begin(session_options(run.address(), 1, 2), small_terms(2, Kind::kAsync));
  chief.send_signal(SIGKILL);
  const Status outcome = run.outcome();
  EXPECT_EQ(outcome.code(), Code::kPeerLost);
  EXPECT_TRUE(comes_true([&] { return !other.shards[0]->look().ok(); }));
  const Status failed = other.shards[0]->look().status();
  EXPECT_EQ(failed.code(), Code::kPeerLost);
  EXPECT_THAT(failed.message(), HasSubstr("worker 0, which keeps the run, was lost"));
  EXPECT_EQ(other.shards[0]->join().status().code(), Code::kPeerLost);
}

TEST(ShardServer, AChiefThatHasFailedIsNotTakenForLost) {
  ServedRun run;
  const RunTerms terms = small_terms(2, Kind::kAsync);
  Worker chief = Worker::begin(session_options(run.address(), 0, 2), terms);
  Worker other = Worker::begin(session_options(run.address(), 1, 2), terms);
  chief.session->fail("the disk is full");
  EXPECT_EQ(run.outcome(), Status(Code::kCancelled, "worker 0: the disk is full"));
  EXPECT_TRUE(comes_true([&] { return !other.shards[0]->look().ok(); }));
  const Status failed = other.shards[0]->look().status();
  EXPECT_EQ(failed.code(), Code::kCancelled);
  EXPECT_THAT(failed.message(), HasSubstr("worker 0: the disk is full"));
}

TEST(ShardServer, DoesNotWaitForEverForTheChief) {
  const auto server =
      ShardServer::listen({.address = {"127.0.0.1", 0}, .arrival_time = milliseconds(100)})
          .take_or_throw();
  const Status outcome = server->serve(-1);
  EXPECT_EQ(outcome.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(outcome.message(), HasSubstr("worker 0, the chief, did not come within 100.0 ms"));
}

TEST(ShardServer, AReaderOfTheLedgerWakesWhenTheServerEnds) {
  auto run = std::make_unique<ServedRun>();
  Worker chief = Worker::begin(session_options(run->address(), 0, 2), small_terms(2, Kind::kAsync));
  (void)chief.session->ledger().look().take_or_throw();
  std::thread ends([&] { run.reset(); });
  const Status woken = chief.session->ledger().wait(Deadline::after(kLong));
  EXPECT_EQ(woken.code(), Code::kPeerLost);
  ends.join();
}

/// An authenticated connection that says what it likes.
transport::Channel dial(const transport::HostPort& server) {
  transport::Hello hello;
  hello.purpose = transport::Purpose::kServer;
  transport::Dialer dialer({transport::resolve(server).take_or_throw(), {}, hello});
  EXPECT_TRUE(comes_true([&] { return dialer.step(std::chrono::steady_clock::now()); }));
  return dialer.take().take_or_throw();
}

TEST(ShardServer, NonsenseOnADataConnectionIsCutOff) {
  ServedRun run;
  Worker far = Worker::begin(session_options(run.address(), 0, 1, kLong, false),
                             small_terms(1, Kind::kAsync));
  const transport::Channel stranger = dial(run.address());
  // nobody can attach without a session's token
  const std::string attach = transport::frame(encode(ServerRequest{
      .op = ServerOp::kAttach, .id = 1, .body = encode(Attachment{.worker = 0, .token = 1})}));
  ASSERT_EQ(::send(stranger.fd(), attach.data(), attach.size(), MSG_NOSIGNAL), std::ssize(attach));
  EXPECT_TRUE(comes_true([&] {
    char byte = 0;
    return ::recv(stranger.fd(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
  (void)far.push(1, 0).take_or_throw();
  EXPECT_EQ(far.value(1), -1);
  EXPECT_TRUE(far.session->finish().ok());
  EXPECT_TRUE(run.outcome().ok());
}

/// Sends a request and waits for its reply.
void ask(const transport::Channel& to, ServerOp op, const std::string& body) {
  const std::string request =
      transport::frame(encode(ServerRequest{.op = op, .id = 7, .body = body}));
  ASSERT_EQ(::send(to.fd(), request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  EXPECT_TRUE(comes_true([&] {
    char byte = 0;
    return ::recv(to.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }));
}

TEST(ShardServer, AWorkerThatBreaksTheProtocolIsCutOff) {
  ServedRun run;
  Worker chief = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  const transport::Channel control = dial(run.address());
  ask(control, ServerOp::kHello,
      encode(WorkerHello{.worker = 1, .workers = 2, .token = 5, .timeout_ns = 60'000'000'000}));
  const std::vector<std::pair<DataRequest, std::string>> bad = {
      {{.op = DataOp::kPush, .shard = 2, .given = "\1"}, "does not fit the shard"},
      {{.op = DataOp::kPush, .shard = 1, .given = "\1"}, "does not fit the shard"},
      {{.op = DataOp::kSet, .shard = 1, .piece = 2, .given = "\1\1\1"}, "does not fit the shard"},
      {{.op = DataOp::kNext, .given = "\2"}, "malformed request: a list of arrays"}};
  for (const auto& [request, complaint] : bad) {
    const transport::Channel data = dial(run.address());
    ask(data, ServerOp::kAttach, encode(Attachment{.worker = 1, .token = 5}));
    const std::string words = transport::frame(encode(request));
    ASSERT_EQ(::send(data.fd(), words.data(), words.size(), MSG_NOSIGNAL), std::ssize(words));
    const std::string& expected = complaint;
    EXPECT_TRUE(comes_true([&] { return run.has_event(expected); })) << run.events();
  }
  (void)chief.push(0, 0).take_or_throw();
}

TEST(ShardServer, WhoWaitsBehindAConnectionLearnsThatTheServerHasEnded) {
  auto run = std::make_unique<ServedRun>();
  const WorkerSession::Options options = session_options(run->address(), 0, 2, kLong, false);
  Worker far = Worker::begin(options, small_terms(2, Kind::kSync));
  (void)far.value(0);
  (void)far.push(0, 0).take_or_throw();
  far.shards[0]->begin_read(Deadline::never());
  std::thread ends([&] { run.reset(); });
  const Status failed = far.shards[0]->read(Deadline::never()).status();
  ends.join();
  EXPECT_EQ(failed.code(), Code::kPeerLost);
  EXPECT_THAT(failed.message(), HasSubstr("the server was told to stop"));
  EXPECT_EQ(far.shards[0]->join().status().code(), Code::kPeerLost);
}

// One that was killed on this host is lost at once, any other after the timeout.
TEST(LostServer, EndsTheCallsOfItsWorkers) {
  struct Case {
    int signal;
    bool is_near;
    ServerProcess server = {};
    Worker me = {};
  };
  Case cases[] = {{SIGKILL, true}, {SIGKILL, false}, {SIGSTOP, true}, {SIGSTOP, false}};
  for (Case& c : cases) {
    const Duration timeout =
        c.is_near && c.signal == SIGKILL ? Duration(std::chrono::hours(1)) : kSilence;
    c.me = Worker::begin(session_options(c.server.address(), 0, 2, timeout, c.is_near),
                         small_terms(2, Kind::kSync));
    (void)c.me.value(0);
    (void)c.me.push(0, 0).take_or_throw();
  }
  for (const Case& c : cases) c.server.send_signal(c.signal);
  for (const Case& c : cases) {
    EXPECT_EQ(c.me.shards[0]->read(Deadline::after(kLong)).status().code(), Code::kPeerLost);
  }
}

TEST(ShardServer, WhoSpeaksNonsenseIsCutOffAndHarmsNobody) {
  ServedRun run;
  Worker chief = Worker::begin(session_options(run.address(), 0, 1), small_terms(1, Kind::kAsync));
  const std::string beat = transport::frame(encode(ServerRequest{.op = ServerOp::kBeat}));
  const std::string hello =
      transport::frame(encode(ServerRequest{.op = ServerOp::kHello, .id = 1, .body = "nonsense"}));
  for (const std::string& words : {std::string(64, '\xff'), beat, hello}) {
    const transport::Channel stranger = dial(run.address());
    ASSERT_EQ(::send(stranger.fd(), words.data(), words.size(), MSG_NOSIGNAL), std::ssize(words));
    EXPECT_TRUE(comes_true([&] {
      char byte = 0;
      return ::recv(stranger.fd(), &byte, 1, MSG_DONTWAIT) == 0;
    }));
  }
  EXPECT_TRUE(run.has_event("frame of 4294967295 B"));
  EXPECT_TRUE(run.has_event("a request before the hello"));
  EXPECT_TRUE(run.has_event("malformed hello of a worker"));
  (void)chief.push(0, 0).take_or_throw();
  EXPECT_TRUE(chief.session->finish().ok());
  EXPECT_TRUE(run.outcome().ok());
}

}  // namespace
}  // namespace stormo::server
