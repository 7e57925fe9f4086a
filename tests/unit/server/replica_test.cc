// A backup as its primary uses it, without connections.
#include <stormo/server/replica/replica.h>

#include <cstring>
#include <limits>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server_run.h"

namespace stormo::server {
namespace {

using Kind = protocol::PolicyOptions::Kind;

const auto kGoOn = [] { return Status(); };

std::unique_ptr<Replica> replica(Replica::Role role) {
  auto out = Replica::create(1, 0, 2, role).take_or_throw();
  throw_if_error(out->run().create_shards(small_terms(1, Kind::kAsync)));
  return out;
}

/// A push of ones to shard 0.
DataRequest push_of(std::uint64_t sequence) {
  return {.op = DataOp::kPush,
          .id = 100 + sequence,
          .patience_ns = -1,
          .push = {.pieces = {}, .lr = 1, .sequence = sequence},
          .given = "\1"};
}

Payload ones() {
  static std::vector<double> values(static_cast<std::size_t>(kShardElements), 1);
  return {.arrays = {{.array = values.data()}}};
}

std::string execute(Replica& at, const DataRequest& push, RequestExecutor::Answer& answer) {
  return at.execute(at.executor_of(0), push, ones(), answer).take_or_throw();
}

/// What the primary sends when it has executed a request.
DataRequest sent(const DataRequest& request, std::uint64_t id, std::string result) {
  DataRequest out = request;
  out.worker = 0;
  out.origin = std::exchange(out.id, id);
  out.result = std::move(result);
  return out;
}

double value(Replica& of) {
  const auto shards = of.run().shards_of(0, {});
  double out = 0;
  std::memcpy(&out, shards[0]->values(0).weights, sizeof out);
  return out;
}

TEST(Replica, ABackupDoesWhatThePrimaryDidOnce) {
  const auto primary = replica(Replica::Role::kAlone), backup = replica(Replica::Role::kBackup);
  for (std::uint64_t i = 0; i < 3; ++i) {
    RequestExecutor::Answer answer{.id = push_of(i).id};
    const std::string result = execute(*primary, push_of(i), answer);
    EXPECT_TRUE(backup->follow(sent(push_of(i), i + 1, result), ones()).ok());
    EXPECT_TRUE(backup->follow(sent(push_of(i), i + 1, result), ones()).ok()) << "again";
    EXPECT_EQ(value(*backup), value(*primary));
  }
  EXPECT_EQ(value(*backup), -4.25) << "with momentum";
  EXPECT_TRUE(backup->failure().ok());
  // a worker that repeats its last push, because it has no answer, gets this answer
  EXPECT_EQ(backup->executor_of(0).last_answer(push_of(2)).id, push_of(2).id);
}

TEST(Replica, ACopyThatDiffersIsNoCopy) {
  const auto primary = replica(Replica::Role::kAlone), backup = replica(Replica::Role::kBackup);
  RequestExecutor::Answer answer;
  (void)execute(*primary, push_of(0), answer);  // it misses this one
  const std::string result = execute(*primary, push_of(1), answer);
  const Status failed = backup->follow(sent(push_of(1), 1, result), ones());
  EXPECT_EQ(failed.code(), Code::kCorrupt);
  EXPECT_THAT(failed.message(), testing::HasSubstr("differs from the original"));
  EXPECT_EQ(backup->failure(), failed);
}

TEST(Replica, ResultsOfReadsAreComparedToo) {
  const auto backup = replica(Replica::Role::kBackup);
  const DataRequest read{.op = DataOp::kRead, .id = 1, .given = {}};
  EXPECT_EQ(backup->follow(sent(read, 1, encode(ViewHead{.version = 1})), {}).code(),
            Code::kCorrupt);
}

TEST(Replica, ABackupServesWhenItIsPromoted) {
  const auto backup = replica(Replica::Role::kBackup);
  const Status early = backup->wait_to_serve(Deadline::after(std::chrono::milliseconds(20)), kGoOn);
  EXPECT_EQ(early.code(), Code::kPeerLost);
  EXPECT_THAT(early.message(), testing::HasSubstr("server 0 cannot be reached by this worker"));
  std::thread waits([&] { EXPECT_TRUE(backup->wait_to_serve(Deadline::never(), kGoOn).ok()); });
  backup->go_on_alone();
  waits.join();
  RequestExecutor::Answer answer;
  (void)execute(*backup, push_of(0), answer);
  EXPECT_EQ(value(*backup), -1);
}

TEST(Replica, WhoWaitsLearnsThatTheServerEnds) {
  const auto backup = replica(Replica::Role::kBackup);
  std::thread waits(
      [&] { EXPECT_EQ(backup->wait_to_serve(Deadline::never(), kGoOn).code(), Code::kCancelled); });
  backup->close();
  waits.join();
}

TEST(Replica, WorkersAreTakenOutByThePrimaryOnly) {
  const auto backup = replica(Replica::Role::kBackup);
  const auto is_active = [&] {
    return backup->run().shards_of(0, {})[0]->current_state().worker(0).active;
  };
  EXPECT_TRUE(backup->evict(0, Deadline::never()).ok());
  EXPECT_TRUE(is_active());
  EXPECT_FALSE(backup->run().is_lost(0));
  EXPECT_TRUE(backup->follow({.op = DataOp::kLose, .id = 1, .given = {}, .worker = 0}, {}).ok());
  EXPECT_FALSE(is_active());
  EXPECT_TRUE(backup->run().is_lost(0));
  backup->readmit(0);
  EXPECT_TRUE(backup->run().is_lost(0));
  EXPECT_TRUE(
      backup->follow({.op = DataOp::kComeBack, .id = 2, .given = {}, .worker = 0}, {}).ok());
  EXPECT_FALSE(backup->run().is_lost(0));
}

}  // namespace
}  // namespace stormo::server
