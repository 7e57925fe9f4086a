// The values that docs/walk-push.md follows: two workers push to one shard, which they share or
// which a server has.
#include <stormo/server/process/shard_server.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/server/worker/worker_session.h>

#include <gtest/gtest.h>

#include <array>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace stormo::server {
namespace {

using protocol::PushAction;

using Numbers = std::array<float, 2>;

std::vector<ShardPiece> one_parameter() {
  return {{.parameter = 0, .begin = 0, .end = 2, .dtype = DType::kFloat32}};
}

void set_values(Shard& shard, Numbers values) {
  PieceArrays arrays;
  arrays.weights = reinterpret_cast<std::byte*>(values.data());
  throw_if_error(shard.set(0, arrays));
}

Numbers numbers_of(const Shard::View& view) {
  const auto* values = reinterpret_cast<const float*>(view.pieces[0]);
  return {values[0], values[1]};
}

Shard::Pushed push(Shard& shard, const Numbers& gradient) {
  const PushedPiece pieces[] = {{.array = gradient.data()}};
  const PushedGradient pushed{.pieces = pieces, .lr = 0.1, .sequence = 0};
  shard.begin_push(pushed);
  return shard.push(pushed).take_or_throw();
}

/// Both have read version 0 before the first push.
void expect_the_values_of_the_page(Shard& first, Shard& second) {
  EXPECT_EQ(numbers_of(first.read().take_or_throw()), (Numbers{1, 2}));
  EXPECT_EQ(numbers_of(second.read().take_or_throw()), (Numbers{1, 2}));
  const Shard::Pushed one = push(first, {0.5, 1});
  EXPECT_EQ(one.decision.action, PushAction::kUpdate);
  EXPECT_EQ(one.decision.staleness, 0);
  const Shard::View after_one = first.look().take_or_throw();
  EXPECT_EQ(after_one.version, 1);
  EXPECT_FLOAT_EQ(numbers_of(after_one)[0], 0.95f);
  EXPECT_FLOAT_EQ(numbers_of(after_one)[1], 1.9f);
  const Shard::Pushed two = push(second, {8, 4});
  EXPECT_EQ(two.decision.staleness, 1);
  EXPECT_EQ(two.commit, one.commit + 1);
  const Shard::View after_two = first.look().take_or_throw();
  EXPECT_EQ(after_two.version, 2);
  EXPECT_FLOAT_EQ(numbers_of(after_two)[0], 0.15f);
  EXPECT_FLOAT_EQ(numbers_of(after_two)[1], 1.5f);
}

TEST(WalkPush, InSharedMemory) {
  const ShardOptions options{.workers = 2,
                             .optimizer = {.kind = optim::Options::Kind::kSgd},
                             .policy = protocol::make_policy({}, 2).take_or_throw()};
  SharedShard first(one_parameter(), options, 0, {}), second(one_parameter(), options, 1, {});
  const auto memory = transport::MemoryFile::anonymous(first.bytes()).take_or_throw();
  first.create(memory.data());
  second.attach(memory.data());
  set_values(first, {1, 2});
  expect_the_values_of_the_page(first, second);
}

TEST(WalkPush, ToAServerProcess) {
  const auto server =
      ShardServer::listen({.address = {"127.0.0.1", 0}, .on_event = {}}).take_or_throw();
  auto served = std::async(std::launch::async, [&] { return server->serve(-1); });
  const RunTerms terms{.facts = {},
                       .pieces = {one_parameter()},
                       .workers = 2,
                       .optimizer = {.kind = optim::Options::Kind::kSgd},
                       .policy = {}};
  const Deadline soon = Deadline::after(std::chrono::seconds(60));
  std::vector<std::shared_ptr<WorkerSession>> sessions;
  for (const int worker : {0, 1}) {
    sessions.push_back(WorkerSession::connect({.servers = {server->address()},
                                               .secret = {},
                                               .worker = worker,
                                               .workers = 2,
                                               .share_memory = false},
                                              soon)
                           .take_or_throw());
  }
  const auto first = std::move(sessions[0]->shards(terms, soon).take_or_throw()[0]);
  set_values(*first, {1, 2});
  throw_if_error(sessions[0]->open());
  const auto second = std::move(sessions[1]->shards(terms, soon).take_or_throw()[0]);
  EXPECT_TRUE(first->is_remote());
  expect_the_values_of_the_page(*first, *second);
  for (const auto& session : {sessions[1], sessions[0]}) throw_if_error(session->finish());
  EXPECT_TRUE(served.get().ok());
}

}  // namespace
}  // namespace stormo::server
