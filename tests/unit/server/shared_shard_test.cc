#include <stormo/server/shard/shared_shard.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {
namespace {

using protocol::PolicyOptions;
using protocol::PushAction;
using protocol::PushDecision;
using Kind = PolicyOptions::Kind;
using testing::HasSubstr;

constexpr std::int64_t kElements = 20'000;  // three blocks, the last one incomplete

/// A shard of two pieces of float64, and a SharedShard for each worker and a server process.
class Servers {
 public:
  Servers(int workers, const optim::Options& optimizer, const PolicyOptions& policy)
      : Servers(workers, optimizer, protocol::make_policy(policy, workers).take_or_throw()) {}
  Servers(int workers, const optim::Options& optimizer,
          const std::shared_ptr<const protocol::Policy>& policy)
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 26).take_or_throw()) {
    const std::vector<ShardPiece> pieces = {
        {.parameter = 0, .begin = 0, .end = kElements, .dtype = DType::kFloat64},
        {.parameter = 1, .begin = 10, .end = 17, .dtype = DType::kFloat64}};
    for (int w = 0; w <= workers; ++w) {
      workers_.push_back(std::make_unique<SharedShard>(
          pieces, ShardOptions{.workers = workers, .optimizer = optimizer, .policy = policy}, w,
          ShardWait{.policy = transport::wait_policy(workers, 2)}));
    }
    EXPECT_LE(workers_[0]->bytes(), memory_.size());
    workers_[0]->create(memory_.data());
    for (const auto& w : workers_) w->attach(memory_.data());
    set(0, 0);
  }

  SharedShard& of(int worker) { return *workers_[static_cast<std::size_t>(worker)]; }
  SharedShard& server() { return *workers_.back(); }

  /// First values: of element i, `first` + `slope` i.
  void set(double first, double slope) {
    for (std::size_t p = 0; p < 2; ++p) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < of(0).pieces()[p].elements(); ++i) {
        values.push_back(first + slope * static_cast<double>(i));
      }
      PieceArrays arrays;
      arrays.weights = reinterpret_cast<std::byte*>(values.data());
      throw_if_error(of(0).set(p, arrays));
    }
  }

  PushDecision push(int worker, const std::vector<double>& gradient, double lr = 1,
                    double weight = 1) {
    const PushedPiece pieces[] = {{.array = gradient.data()}, {}};
    return of(worker)
        .push({.pieces = pieces,
               .lr = lr,
               .weight = weight,
               .sequence = of(worker).current_state().worker(worker).pushes})
        .take_or_throw()
        .decision;
  }
  std::vector<double> read(int worker) { return values(of(worker).read().take_or_throw()); }
  static std::vector<double> values(const Shard::View& view) {
    const auto* w = reinterpret_cast<const double*>(view.pieces[0]);
    return {w, w + kElements};
  }
  std::vector<double> now() { return values(of(0).look().take_or_throw()); }

 private:
  transport::MemoryFile memory_;
  std::vector<std::unique_ptr<SharedShard>> workers_;
};

std::vector<double> constant(double value) {
  return std::vector<double>(static_cast<std::size_t>(kElements), value);
}

std::vector<double> random_gradient(std::uint64_t seed) {
  Rng rng(seed, "gradient");
  std::vector<double> out = constant(0);
  for (double& g : out) g = rng.uniform() - 0.5;
  return out;
}

class EveryOptimizer : public testing::TestWithParam<optim::Options::Kind> {};
INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer,
                         testing::Values(optim::Options::Kind::kSgd, optim::Options::Kind::kAdamW,
                                         optim::Options::Kind::kAdam,
                                         optim::Options::Kind::kAdagrad,
                                         optim::Options::Kind::kRmsProp,
                                         optim::Options::Kind::kLion));

// One worker on a server is the optimizer in place, bit for bit.
TEST_P(EveryOptimizer, OneWorkerIsTheSequentialRun) {
  const optim::Options options{.kind = GetParam(), .momentum = 0.9, .weight_decay = 0.01};
  Servers servers(1, options, {.kind = Kind::kAsync});
  servers.set(1, 1e-4);
  std::vector<double> weights = servers.now(), slots[2] = {constant(0), constant(0)};
  for (int step = 1; step <= 5; ++step) {
    EXPECT_EQ(servers.read(0), weights);
    const std::vector<double> gradient = random_gradient(static_cast<std::uint64_t>(step));
    servers.push(0, gradient, 0.1);
    const optim::GradientTerm term{.data = gradient.data()};
    optim::update(options, {.lr = 0.1, .number = step},
                  {.begin = 0,
                   .end = kElements,
                   .dtype = DType::kFloat64,
                   .weights = weights.data(),
                   .gradients = {&term, 1},
                   .gradient_dtype = DType::kFloat64,
                   .slots = {slots[0].data(), slots[1].data()}});
  }
  EXPECT_EQ(servers.read(0), weights);
  EXPECT_EQ(servers.of(0).values(0).updates, 5);
  EXPECT_EQ(servers.of(0).values(1).updates, 0) << "without a gradient a piece is not updated";
}

TEST(SharedShard, ATrustRatioIsThatOfTheWholePiece) {
  for (const auto kind : {optim::Options::Kind::kLars, optim::Options::Kind::kLamb}) {
    const optim::Options options{.kind = kind, .momentum = 0.9, .weight_decay = 0.01};
    Servers servers(1, options, {.kind = Kind::kAsync});
    servers.set(1, 1e-4);
    std::vector<double> weights = servers.now(), slots[2] = {constant(0), constant(0)};
    for (int step = 1; step <= 3; ++step) {
      const std::vector<double> gradient = random_gradient(static_cast<std::uint64_t>(step));
      servers.read(0);
      servers.push(0, gradient, 0.1);
      const optim::GradientTerm term{.data = gradient.data()};
      const optim::UpdateRange whole{.begin = 0,
                                     .end = kElements,
                                     .dtype = DType::kFloat64,
                                     .weights = weights.data(),
                                     .gradients = {&term, 1},
                                     .gradient_dtype = DType::kFloat64,
                                     .slots = {slots[0].data(), slots[1].data()}};
      optim::UpdateStep at{.lr = 0.1, .number = step};
      at.trust_ratio = optim::trust_ratio(options, optim::prepare(options, at, whole));
      EXPECT_NE(at.trust_ratio, 1);
      optim::update(options, at, whole);
      const std::vector<double> served = servers.now();
      for (std::size_t i = 0; i < served.size(); ++i) ASSERT_NEAR(served[i], weights[i], 1e-12);
    }
  }
}

TEST(SharedShard, AnAverageIsWeightedByTheSamples) {
  Servers servers(3, {}, {.kind = Kind::kSync});
  const std::vector<double> weights = {4, 1, 3};
  for (int w = 0; w < 3; ++w) (void)servers.read(w);
  std::vector<double> expected = constant(0);
  for (int w = 0; w < 3; ++w) {
    const auto gradient = random_gradient(static_cast<std::uint64_t>(w));
    const double weight = weights[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= 0.5 * gradient[i] * weight / 8;
    const PushDecision decision = servers.push(w, gradient, 0.5, weight);
    EXPECT_EQ(decision.action, w < 2 ? PushAction::kAdd : PushAction::kAddAndUpdate);
  }
  const std::vector<double> is = servers.now();
  for (std::size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], expected[i], 1e-15);
}

TEST(SharedShard, PendingGradientsAreForgottenAfterTheirUpdate) {
  Servers servers(2, {}, {.kind = Kind::kNSoftsync, .n = 1});
  for (const double value : {1.0, 2.0, 5.0}) {
    (void)servers.read(0);
    servers.push(0, constant(value));
    servers.push(0, constant(value));
  }
  EXPECT_EQ(servers.now(), constant(-8));
}

TEST(SharedShard, TheLastWorkerThatLeavesAppliesTheRestOfNSoftsync) {
  Servers servers(3, {}, {.kind = Kind::kNSoftsync, .n = 1});
  (void)servers.read(0);
  servers.push(0, constant(8), 0.5, 1);
  servers.push(1, constant(4), 0.5, 3);
  for (const int worker : {1, 0}) {
    (void)servers.of(worker).leave(0.5).take_or_throw();
    EXPECT_EQ(servers.now(), constant(0)) << "worker 2 could still push";
  }
  (void)servers.of(2).leave(0.5).take_or_throw();
  EXPECT_EQ(servers.now(), constant(-2.5)) << "0.5 (8 + 3 * 4) / 4";
  const protocol::ShardState state = servers.of(0).current_state();
  EXPECT_EQ(state.version, 1u);
  EXPECT_EQ(state.pending, 0);
  for (const int worker : {0, 1}) (void)servers.of(worker).join().take_or_throw();
  for (const int worker : {0, 1}) (void)servers.of(worker).leave(0.5).take_or_throw();
  EXPECT_EQ(servers.of(0).current_state().version, 1u) << "there is no rest";
}

TEST(SharedShard, TheFirstOfTwoWorkersThatLeavesCompletesTheUpdate) {
  Servers servers(2, {}, {.kind = Kind::kSync});
  (void)servers.read(0);
  (void)servers.read(1);
  servers.push(0, constant(3), 0.5, 7);
  EXPECT_EQ(servers.now(), constant(0));
  (void)servers.of(0).evict(1).take_or_throw();
  EXPECT_EQ(servers.now(), constant(-1.5)) << "the learning rate is that of the push";
  EXPECT_EQ(servers.read(0), constant(-1.5));
  EXPECT_EQ(servers.of(1).read().status().code(), Code::kPeerLost);
  const PushedPiece pieces[] = {{}, {}};
  EXPECT_EQ(servers.of(1).push({.pieces = pieces}).status().code(), Code::kPeerLost);
  EXPECT_EQ(servers.of(1).join().take_or_throw().sequence, 1u);
}

// Zheng et al. 2017: w - lr (g + lambda g g (w - v)), v the weights that g was computed from.
TEST(SharedShard, CompensatesForDelay) {
  PolicyOptions policy{
      .kind = Kind::kAsync, .compensation = protocol::Compensation::kDelay, .lambda = 0.5};
  Servers servers(2, {}, policy);
  servers.set(1, 1e-4);
  const std::vector<double> v = servers.read(0);
  (void)servers.read(1);
  const auto other = random_gradient(1), gradient = random_gradient(2);
  servers.push(1, other, 0.1);
  const std::vector<double> w = servers.now();  // look() is worker 0's: its pin moves
  Servers again(2, {}, policy);
  again.set(1, 1e-4);
  (void)again.read(0);
  (void)again.read(1);
  again.push(1, other, 0.1);
  again.push(0, gradient, 0.1);
  const std::vector<double> is = again.now();
  for (std::size_t i = 0; i < is.size(); ++i) {
    const double g = gradient[i];
    ASSERT_NEAR(is[i], w[i] - 0.1 * (g + 0.5 * g * g * (w[i] - v[i])), 1e-15);
  }
}

TEST(SharedShard, DelayCompensationWithLambdaZeroIsAsync) {
  std::vector<std::vector<double>> results;
  for (const auto how : {protocol::Compensation::kNone, protocol::Compensation::kDelay}) {
    Servers servers(2, {.momentum = 0.9}, {.kind = Kind::kAsync, .compensation = how, .lambda = 0});
    for (std::uint64_t i = 0; i < 6; ++i) {
      (void)servers.read(static_cast<int>(i % 2));
      servers.push(static_cast<int>(i % 2), random_gradient(i), 0.1);
    }
    results.push_back(servers.now());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(SharedShard, AViewStaysWhatItIs) {
  Servers servers(3, {}, {.kind = Kind::kAsync});
  (void)servers.read(1);
  const Shard::View view = servers.of(0).read().take_or_throw();
  for (int i = 0; i < 20; ++i) {
    servers.push(1, constant(1));
    (void)servers.read(i % 2 + 1);
  }
  EXPECT_EQ(Servers::values(view), constant(0));
  EXPECT_EQ(servers.read(0), constant(-20));
  EXPECT_EQ(servers.of(0).current_state().staleness().max, 1u);
}

TEST(SharedShard, ARepeatedPushIsTakenOnce) {
  Servers servers(1, {}, {.kind = Kind::kAsync});
  (void)servers.read(0);
  const std::vector<double> gradient = constant(1);
  const PushedPiece pieces[] = {{.array = gradient.data()}, {}};
  for (int i = 0; i < 3; ++i) {
    const auto decision = servers.of(0).push({.pieces = pieces, .lr = 1, .sequence = 0});
    EXPECT_EQ(decision->decision.action, i == 0 ? PushAction::kUpdate : PushAction::kRepeated);
  }
  EXPECT_EQ(servers.now(), constant(-1));
  EXPECT_THAT(servers.of(0).push({.pieces = pieces, .sequence = 9}).status().message(),
              HasSubstr("was not received"));
}

/// The values of a worker on both pieces.
struct Own {
  std::vector<double> first, second;
  std::array<void*, 2> pieces() { return {first.data(), second.data()}; }
};

// Zhang et al. 2015: d = alpha (x - c), x - d and c + d.
TEST(SharedShard, AnExchangeMovesBothByTheSame) {
  Servers servers(2, {}, {.kind = Kind::kAsync});
  servers.set(1, 1e-4);
  std::vector<double> c = servers.now();
  std::array<std::vector<double>, 2> x = {random_gradient(1), random_gradient(2)};
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (int w = 0; w < 2; ++w) {
      Own own{.first = x[static_cast<std::size_t>(w)], .second = std::vector<double>(7, 4)};
      const auto pieces = own.pieces();
      const auto done = servers.of(w).elastic_average(pieces, 0.25, step).take_or_throw();
      EXPECT_EQ(done.decision.staleness, step == 0 && w == 0 ? 0u : 1u);
      for (std::size_t i = 0; i < c.size(); ++i) {
        const double d = 0.25 * (x[static_cast<std::size_t>(w)][i] - c[i]);
        ASSERT_EQ(own.first[i], x[static_cast<std::size_t>(w)][i] - d);
        c[i] += d;
      }
      EXPECT_LT(own.second[6], 4) << "the centre is below";
      x[static_cast<std::size_t>(w)] = own.first;
      EXPECT_EQ(servers.now(), c);
    }
  }
  EXPECT_EQ(servers.of(0).current_state().version, 6u);
}

TEST(SharedShard, AnExchangeAtRateZeroChangesNoBit) {
  Servers servers(1, {}, {.kind = Kind::kAsync});
  servers.set(1, 1e-4);
  const std::vector<double> c = servers.now();
  Own own{.first = random_gradient(1), .second = std::vector<double>(7, 4)};
  const auto pieces = own.pieces();
  (void)servers.of(0).elastic_average(pieces, 0, 0).take_or_throw();
  EXPECT_EQ(own.first, random_gradient(1));
  EXPECT_EQ(servers.now(), c);
}

TEST(SharedShard, ARepeatedExchangeIsMadeOnce) {
  Servers servers(1, {}, {.kind = Kind::kAsync});
  Own own{.first = constant(8), .second = std::vector<double>(7, 8)};
  const auto pieces = own.pieces();
  for (int i = 0; i < 3; ++i) {
    const auto done = servers.of(0).elastic_average(pieces, 0.5, 0).take_or_throw();
    EXPECT_EQ(done.decision.action, i == 0 ? PushAction::kUpdate : PushAction::kRepeated);
  }
  EXPECT_EQ(own.first, constant(4));
  EXPECT_EQ(servers.now(), constant(4));
  EXPECT_THAT(servers.of(0).elastic_average(pieces, 0.5, 9).status().message(),
              HasSubstr("was not received"));
  Servers waiting(2, {}, {.kind = Kind::kSync});
  (void)waiting.read(0);
  EXPECT_THAT(waiting.of(0).elastic_average(pieces, 0.5, 0).status().message(),
              HasSubstr("give the shard policy 'async'"));
}

TEST(SharedShard, WorkersThatExchangeAtATimeLoseWhatTheCentreGains) {
  constexpr int kWorkers = 4;
  Servers servers(kWorkers, {}, {.kind = Kind::kAsync});
  std::vector<std::thread> threads;
  std::array<Own, kWorkers> own;
  for (int w = 0; w < kWorkers; ++w) {
    Own& mine = own[static_cast<std::size_t>(w)];
    mine = {.first = constant(w), .second = std::vector<double>(7, w)};
    threads.emplace_back([&servers, &mine, w] {
      const auto pieces = mine.pieces();
      for (std::uint64_t step = 0; step < 40; ++step) {
        (void)servers.of(w).elastic_average(pieces, 0.3, step).take_or_throw();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  double sum = servers.now()[0];
  EXPECT_EQ(servers.now(), constant(sum));
  for (const Own& mine : own) {
    EXPECT_EQ(mine.first, constant(mine.first[0]));
    sum += mine.first[0];
  }
  EXPECT_NEAR(sum, 0 + 1 + 2 + 3, 1e-12);
}

// Why workers push what they change, and not what they have.
TEST(SharedShard, DeltasAddUpWhereWholeParametersOverwrite) {
  constexpr int kRounds = 10;
  const auto sum_of_updates = [](bool overwrites) {
    Servers servers(3, {}, {.kind = Kind::kAsync});
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::vector<double>> own;
      for (int w = 0; w < 3; ++w) own.push_back(servers.read(w));
      for (int w = 0; w < 3; ++w) {
        const std::vector<double> now = Servers::values(servers.of(w).look().take_or_throw());
        std::vector<double> gradient(kElements, -1);
        for (std::size_t i = 0; overwrites && i < gradient.size(); ++i) {
          gradient[i] = now[i] - (own[static_cast<std::size_t>(w)][i] + 1);
        }
        servers.push(w, gradient);
      }
    }
    EXPECT_EQ(servers.of(0).current_state().version, 3u * kRounds) << "updates that were made";
    return servers.read(0)[7];
  };
  EXPECT_EQ(sum_of_updates(false), 3 * kRounds);
  EXPECT_EQ(sum_of_updates(true), kRounds) << "two of three are lost";
}

TEST(SharedShard, AReadThatMustWaitEndsByItsDeadline) {
  Servers servers(2, {}, {.kind = Kind::kSync});
  (void)servers.read(0);
  servers.push(0, constant(1));
  const auto late = servers.of(0).read(Deadline::after(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
}

/// Promises what a second update breaks.
struct OneUpdate final : protocol::Policy {
  std::string_view name() const override { return "one update"; }
  Status invariant(const protocol::ShardState& state) const override {
    return state.version <= 1 ? Status() : Status(Code::kCorrupt, "a second update");
  }
};

TEST(SharedShard, APushThatBreaksAnInvariantChangesNothingAndFreesTheShard) {
  Servers servers(2, {}, std::make_shared<OneUpdate>());
  servers.push(0, constant(1));
  const protocol::ShardState before = servers.of(0).current_state();
  const std::vector<double> gradient = constant(1);
  const PushedPiece pieces[] = {{.array = gradient.data()}, {}};
  for (const int worker : {0, 1, 0, 1, 0, 1}) {  // more often than there are copies
    const PushedGradient push{.pieces = pieces, .lr = 1, .sequence = before.worker(worker).pushes};
    const Status broken = servers.of(worker).push(push, Deadline::after(Duration::zero())).status();
    EXPECT_EQ(broken.code(), Code::kCorrupt) << broken.to_string();
    EXPECT_EQ(broken.message(), "a second update");
  }
  EXPECT_EQ(servers.of(0).current_state(), before);
  EXPECT_EQ(servers.now(), constant(-1));
}

struct ThreadCase {
  const char* name;
  PolicyOptions policy;
};
class Threads : public testing::TestWithParam<ThreadCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Threads,
    testing::Values(ThreadCase{"sync", {.kind = Kind::kSync}},
                    ThreadCase{"async", {.kind = Kind::kAsync}},
                    ThreadCase{"ssp", {.kind = Kind::kSsp, .bound = 1}},
                    ThreadCase{"ssp_0", {.kind = Kind::kSsp, .bound = 0}},
                    ThreadCase{"n_softsync", {.kind = Kind::kNSoftsync, .n = 2}},
                    ThreadCase{"backup_workers", {.kind = Kind::kBackupWorkers, .backups = 1}}),
    [](const auto& test) { return test.param.name; });

// Every element has the same value at any time, and no gradient is lost or used twice.
TEST_P(Threads, NoUpdateIsTornOrLost) {
  constexpr int kWorkers = 4, kSteps = 40;
  Servers servers(kWorkers, {.momentum = 0.5}, GetParam().policy);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWorkers; ++w) {
    threads.emplace_back([&servers, w] {
      const std::vector<double> gradient = constant(1);
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<double> is = servers.read(w);
        EXPECT_EQ(is, constant(is[0]));
        servers.push(w, gradient);
      }
      (void)servers.of(w).leave(1).take_or_throw();
    });
  }
  for (std::thread& t : threads) t.join();
  // v = 0.5 v + 1 and w = w - v, as often as there were updates
  const protocol::ShardState state = servers.of(0).current_state();
  double v = 0, w = 0;
  for (std::uint64_t i = 0; i < state.version; ++i) w -= v = 0.5 * v + 1;
  EXPECT_EQ(servers.now(), constant(w));
  std::uint64_t pushes = 0, dropped = 0;
  for (const protocol::WorkerState& worker : state.workers) {
    pushes += worker.pushes;
    dropped += worker.dropped;
  }
  EXPECT_EQ(pushes, std::uint64_t{kWorkers * kSteps});
  EXPECT_EQ(state.staleness().count + dropped, pushes);
}

// Who writes goes on after the lease was taken, and may be done before the new writer has begun.
TEST(SharedShard, APushCountsOnceWhenAServerTakesTheLeaseFromIt) {
  Servers servers(2, {.momentum = 0.5}, {.kind = Kind::kAsync});
  std::atomic<bool> done{false};
  std::thread server([&] {
    for (int i = 0; !done; ++i) {  // at any moment of a push
      const Deadline pause = Deadline::after(std::chrono::microseconds(i % 100));
      while (!pause.expired()) {
      }
      (void)servers.server().evict(1).take_or_throw();
    }
  });
  const std::vector<double> gradient = constant(1);
  const PushedPiece pieces[] = {{.array = gradient.data()}, {}};
  double v = 0, w = 0;
  const Deadline end = Deadline::after(std::chrono::seconds(1));
  for (std::uint64_t i = 0; !end.expired() && !HasFailure(); ++i) {
    const auto pushed = servers.of(0).push({.pieces = pieces, .lr = 1, .sequence = i});
    w -= v = 0.5 * v + 1;
    EXPECT_TRUE(pushed.ok()) << pushed.status().to_string();
    EXPECT_EQ(servers.now()[0], w) << "push " << i;
  }
  done = true;
  server.join();
  EXPECT_EQ(servers.now(), constant(w));
}

}  // namespace
}  // namespace stormo::server
