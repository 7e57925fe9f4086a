// A worker behind a connection exchanges with its servers while it computes: what is sent and
// awaited when, and that the numbers stay the same to the bit.
#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/server/coordinator/coordinator.h>
#include <stormo/server/process/shard_server.h>
#include <stormo/server/shard.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/autograd/activation_checkpoint.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using Policy = protocol::PolicyOptions::Kind;
using plan::ActionKind;
using test::PlanRun;
using test::Problem;
using test::Values;

/// What a worker and its shards did, in order.
struct Log {
  struct Line {
    enum class What { kArrival, kPart, kDone } what;
    std::size_t parameter = 0;  // of kArrival and kPart
    plan::Action action = {};   // of kDone
  };
  std::vector<Line> lines;

  /// Parameters that had arrived, or were sent, when an action was done.
  std::set<std::size_t> before(ActionKind kind, int segment, Line::What what) const {
    std::set<std::size_t> out;
    for (const Line& line : lines) {
      if (line.what == what) out.insert(line.parameter);
      const plan::Action& a = line.action;
      if (line.what == Line::What::kDone && a.kind == kind && a.range.first == segment) break;
    }
    return out;
  }
};

/// Tells what is sent early and awaited late.
class WatchedShard final : public server::Shard {
 public:
  WatchedShard(std::unique_ptr<server::Shard> shard, Log& log)
      : shard_(std::move(shard)), log_(log) {}
  const std::vector<server::ShardPiece>& pieces() const override { return shard_->pieces(); }
  bool is_remote() const override { return shard_->is_remote(); }
  Status set(std::size_t piece, const server::PieceArrays& v) override {
    return shard_->set(piece, v);
  }
  void begin_read(Deadline by) override { shard_->begin_read(by); }
  void begin_push(const server::PushedGradient& g, Deadline by) override {
    shard_->begin_push(g, by);
  }
  void begin_part(const server::PushedGradient& g, std::span<const std::size_t> some) override {
    for (const std::size_t i : some) note(Log::Line::What::kPart, i);
    shard_->begin_part(g, some);
  }
  Result<const std::byte*> arrival(std::size_t piece) override {
    note(Log::Line::What::kArrival, piece);
    return shard_->arrival(piece);
  }
  Result<View> read(Deadline by) override { return shard_->read(by); }
  Result<View> look() override { return shard_->look(); }
  Result<View> save(
      const std::function<void(std::size_t, const server::PieceArrays&)>& copy) override {
    return shard_->save(copy);
  }
  Result<Pushed> push(const server::PushedGradient& g, Deadline by) override {
    return shard_->push(g, by);
  }
  Result<Pushed> elastic_average(std::span<void* const> own, double alpha, std::uint64_t sequence,
                                 Deadline by) override {
    return shard_->elastic_average(own, alpha, sequence, by);
  }
  Result<std::uint64_t> leave(double lr) override { return shard_->leave(lr); }
  Result<Joined> join() override { return shard_->join(); }
  Result<protocol::ShardState> state() const override { return shard_->state(); }

 private:
  void note(Log::Line::What what, std::size_t piece) {
    log_.lines.push_back({.what = what, .parameter = pieces()[piece].parameter});
  }
  std::unique_ptr<server::Shard> shard_;
  Log& log_;
};

class WatchedSession final : public server::WorkerSession {
 public:
  WatchedSession(std::shared_ptr<server::WorkerSession> session, Log& log)
      : session_(std::move(session)), log_(log) {}
  int worker() const override { return session_->worker(); }
  int workers() const override { return session_->workers(); }
  int hosts() const override { return session_->hosts(); }
  bool opens() const override { return session_->opens(); }
  bool is_chief() const override { return session_->is_chief(); }
  bool may_change_chief() const override { return session_->may_change_chief(); }
  bool is_over() const override { return session_->is_over(); }
  Result<std::vector<std::unique_ptr<server::Shard>>> shards(const server::RunTerms& terms,
                                                             Deadline by) override {
    STORMO_ASSIGN_OR_RETURN(auto shards, session_->shards(terms, by));
    for (auto& s : shards) s = std::make_unique<WatchedShard>(std::move(s), log_);
    return shards;
  }
  Status open() override { return session_->open(); }
  server::Ledger& ledger() override { return session_->ledger(); }
  std::unique_ptr<server::Coordinator> coordinator() override { return session_->coordinator(); }
  server::WorkerPulse& pulse() override { return session_->pulse(); }
  Status finish() override { return session_->finish(); }
  void fail(const std::string& why) override { session_->fail(why); }

 private:
  std::shared_ptr<server::WorkerSession> session_;
  Log& log_;
};

PlanRun overlap_run(const Problem& problem, bool overlap, std::vector<parallel::Pass> passes = {}) {
  // terms of tied parameters are added up in the same order
  passes.insert(passes.end(), {parallel::parameter_server(1), parallel::by_segment()});
  if (overlap) passes.push_back(parallel::overlap_exchange());
  PlanRun run{.plan = parallel::compose(parallel::one_device(problem.model(3)->shape()), passes)
                          .take_or_throw(),
              .hosts = {1},
              .problem = problem,
              .batches = problem.batches(3, 8),
              .options = {}};
  run.options.optimizer = {.lr = 0.1, .momentum = 0.9};
  run.options.servers.policy.kind = Policy::kAsync;
  return run;
}

/// Trains with a server in a thread, as if it were on another host.
test::PlanResult train_far(PlanRun run, Log& log) {
  const auto server =
      server::ShardServer::listen({.address = {"127.0.0.1", 0}, .on_event = {}}).take_or_throw();
  Status served;
  std::thread serving([&] { served = server->serve(-1); });
  run.options.session = std::make_shared<WatchedSession>(
      server::WorkerSession::connect(
          {.servers = {server->address()}, .share_memory = false, .on_event = {}},
          Deadline::after(std::chrono::seconds(20)))
          .take_or_throw(),
      log);
  server::WorkerSession& session = *run.options.session;
  test::PlanResult result;
  test::on_plan_ranks(run, [&](test::PlanRank& rank) {
    rank.done = [&](const plan::Action& a) {
      log.lines.push_back({.what = Log::Line::What::kDone, .action = a});
    };
    rank.store();
    throw_if_error(session.ledger().deal({.steps = run.batches.size()}));
    throw_if_error(session.open());
    throw_if_error(rank.store().served()->join());
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      result.losses.push_back(rank.try_step().take_or_throw().loss_sum);
    }
    result.trace = rank.trace;
    throw_if_error(rank.store().served()->leave());
    result.values = rank.values();
    rank.store().keep_values();
    rank.end();
    throw_if_error(session.ledger().leave());
    throw_if_error(session.finish());
  });
  serving.join();
  EXPECT_TRUE(served.ok()) << served.to_string();
  return result;
}

/// Layers of 720 KB each, so that each is sent by itself.
Problem layers() {
  return {"layers",
          [] {
            return std::make_shared<model::Mlp>(std::vector<std::int64_t>{300, 300, 300, 300});
          },
          [](std::int64_t rows) {
            return test::Batch{torch::randn({rows, 300}), torch::randint(300, {rows})};
          }};
}

// Segment s has the parameters 2s (weights) and 2s + 1 (biases).
TEST(EarlyExchange, SegmentsWaitForTheirOwnParametersAndGradientsAreSentDuringBackward) {
  Log log;
  PlanRun run = overlap_run(layers(), true);
  run.batches.resize(1);
  const auto result = train_far(run, log);
  test::expect_trace(result.trace, run.plan, 1);
  for (int s = 0; s < 3; ++s) {
    const auto arrived = log.before(ActionKind::kForward, s, Log::Line::What::kArrival);
    EXPECT_EQ(arrived.size(), static_cast<std::size_t>(2 * s + 2)) << "segment " << s;
    EXPECT_EQ(*arrived.rbegin(), static_cast<std::size_t>(2 * s + 1));
    const auto sent = log.before(ActionKind::kBackward, s, Log::Line::What::kPart);
    EXPECT_TRUE(sent.contains(static_cast<std::size_t>(2 * s))) << "segment " << s;
    EXPECT_GE(*sent.begin(), static_cast<std::size_t>(2 * s));
  }
}

/// Its first segment uses one layer in two parts that are computed again in backward: the gradient
/// changes when it was complete.
Problem used_twice() {
  struct Twice : model::Segment {
    Twice() { layer = register_module("layer", torch::nn::Linear(200, 200)); }
    torch::Tensor forward(torch::Tensor x) override {
      const auto half = [this](const torch::Tensor& y) { return torch::relu(layer->forward(y)); };
      return checkpoint(half, checkpoint(half, x));
    }
    torch::nn::Linear layer = nullptr;
  };
  struct TwoOfThem : model::Chain {
    TwoOfThem() : Chain("two") {
      append("first", std::make_shared<Twice>());
      append("second", std::make_shared<Twice>());
    }
  };
  return {"used twice", [] { return std::make_shared<TwoOfThem>(); },
          [](std::int64_t rows) {
            return test::Batch{torch::randn({rows, 200}), torch::randint(200, {rows})};
          }};
}

/// With layers of more than 256 KiB, and the embedding used by the last segment, too.
Problem large_gpt() {
  return {"gpt",
          [] {
            return std::make_shared<model::Gpt>(model::GptOptions{
                .vocabulary = 300, .context = 8, .layers = 1, .heads = 2, .width = 128});
          },
          [](std::int64_t rows) {
            return test::Batch{torch::randint(300, {rows, 8}), torch::randint(300, {rows, 8})};
          }};
}

void expect_same_bits(PlanRun early, PlanRun late, const std::string& what) {
  Log log, unused;
  const auto at_once = train_far(std::move(late), unused);
  const auto overlapped = train_far(early, log);
  EXPECT_EQ(overlapped.losses, at_once.losses) << what;
  test::expect_near(overlapped.values, at_once.values, 0, what);
  test::expect_trace(overlapped.trace, early.plan, early.batches.size());
  const auto count = [](const Log& of, Log::Line::What kind) {
    return std::ranges::count(of.lines, kind, &Log::Line::what);
  };
  EXPECT_GT(count(log, Log::Line::What::kArrival), 0) << what;
  EXPECT_EQ(count(unused, Log::Line::What::kPart), 0) << what;
}

TEST(EarlyExchange, GivesTheBitsOfAnExchangeAtOnce) {
  for (const Problem& problem : {layers(), large_gpt(), used_twice(), test::cnn_problem()}) {
    for (const auto placement : {server::PlacementRule::kGreedy, server::PlacementRule::kSliced}) {
      PlanRun early = overlap_run(problem, true), late = overlap_run(problem, false);
      for (PlanRun* run : {&early, &late}) {
        run->options.servers.count = 3;
        run->options.servers.placement = placement;
      }
      expect_same_bits(early, late, problem.name);
    }
  }
}

TEST(EarlyExchange, GoesWithClippingAndMicroBatches) {
  const std::vector<parallel::Pass> passes = {parallel::micro_batches(2),
                                              parallel::clip_gradients()};
  PlanRun early = overlap_run(large_gpt(), true, passes),
          late = overlap_run(large_gpt(), false, passes);
  for (PlanRun* run : {&early, &late}) run->options.clip_norm = 0.01;
  expect_same_bits(early, late, "clipped");
}

// Copies change between pushes, and a push sends the sum of several steps.
TEST(EarlyExchange, IsNotForWorkersWithCopies) {
  PlanRun run = overlap_run(test::mlp_problem(), false);
  run.options.strategy.exchange_periods = {.fetch = 2, .push = 2};
  run.plan = parallel::compose(parallel::one_device(run.problem.model(3)->shape()),
                               {parallel::parameter_server(1, {.fetch = 2, .push = 2}),
                                parallel::by_segment(), parallel::overlap_exchange()})
                 .take_or_throw();
  test::on_plan_ranks(run, [&](test::PlanRank& rank) {
    const Status refused = rank.start(run.plan);
    EXPECT_EQ(refused.code(), Code::kBadPlan);
    EXPECT_THAT(refused.message(), testing::HasSubstr("exchanges at once"));
  });
}

}  // namespace
}  // namespace stormo::train
