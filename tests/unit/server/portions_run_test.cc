// Runs with portions: workers as threads, servers, and a coordinator, on a logistic regression.
// Oracle: the same method in one thread, with the whole batch.
#include <stormo/server/coordinator/step_coordinator.h>

#include <poll.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/replica/hosted_run.h>
#include <stormo/server/replica/request_executor.h>

#include "server_run.h"
#include "tests/sanitized.h"
#include "tests/unit/optim/local_vectors.h"

namespace stormo::server {
namespace {

using optim::Logistic;
using optim::Vector;
using testing::HasSubstr;
using Kind = optim::Options::Kind;

constexpr std::size_t kFeatures = 24;
constexpr int kPortions = 12;
const Logistic& logistic() {
  static const Logistic loss(240, kFeatures, 1e-2);
  return loss;
}

/// Three pieces on two shards.
RunTerms terms_for(int workers, const optim::Options& optimizer, int portions = kPortions) {
  RunTerms terms{.pieces = {{{.parameter = 0, .begin = 0, .end = 5, .dtype = DType::kFloat64},
                             {.parameter = 1, .begin = 0, .end = 12, .dtype = DType::kFloat64}},
                            {{.parameter = 0, .begin = 5, .end = 12, .dtype = DType::kFloat64}}},
                 .workers = workers,
                 .optimizer = optimizer};
  terms.policy = {.kind = protocol::PolicyOptions::Kind::kPortions, .portions = portions};
  return terms;
}
/// Where pieces begin in the vector of all weights.
std::size_t place_of(const ShardPiece& piece) {
  return piece.parameter * 12 + static_cast<std::size_t>(piece.begin);
}

Vector all_of(const std::vector<Shard::View>& views,
              const std::vector<std::unique_ptr<Shard>>& shards) {
  Vector out(kFeatures);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (std::size_t i = 0; i < views[s].pieces.size(); ++i) {
      const ShardPiece& piece = shards[s]->pieces()[i];
      const auto* from = reinterpret_cast<const double*>(views[s].pieces[i]);
      std::copy_n(from, piece.elements(),
                  out.begin() + static_cast<std::ptrdiff_t>(place_of(piece)));
    }
  }
  return out;
}

/// What a checkpoint keeps of a run.
struct Saved {
  std::uint64_t step = 0;
  std::vector<double> numbers;                           // of optim::Lbfgs
  std::vector<std::vector<std::vector<Vector>>> arrays;  // by shard, piece; weights, then vectors
};

/// One worker of a run; worker 0 has the coordinator.
class BatchWorker {
 public:
  /// Called with a task in hand, before it is computed. False: the worker gives up, without a word.
  using Hook = std::function<bool(const StepTask&)>;

  BatchWorker(const WorkerSession::Options& options, const RunTerms& terms, std::uint64_t steps,
              Hook hook = {}, const Saved* resumed = nullptr)
      : terms_(terms), hook_(std::move(hook)) {
    const Deadline by = Deadline::after(kLong);
    session_ = WorkerSession::connect(options, by).take_or_throw();
    shards_ = session_->shards(terms, by).take_or_throw();
    if (!session_->opens()) return;
    if (resumed != nullptr) set(*resumed);
    throw_if_error(session_->ledger().deal({.first_step = resumed ? resumed->step : 0,
                                            .steps = steps,
                                            .portions = terms.policy.portions}));
    if (resumed != nullptr) first_step_ = resumed->step;
    coordinator_.emplace(StepCoordinator::Options{
        .servers = session_->coordinator(),
        .terms = session_->ledger().terms().take_or_throw(),
        .optimizer = terms.optimizer,
        .learning_rate = [lr = terms.optimizer.lr](std::uint64_t) { return lr; },
        .numbers = resumed ? resumed->numbers : std::vector<double>()});
    throw_if_error(coordinator_->status());
    throw_if_error(session_->open());
  }

  /// Of the step that the run is at.
  Saved save() {
    const auto pause = coordinator_->pause();
    Saved out{.step = session_->ledger().look().take_or_throw().position,
              .numbers = coordinator_->numbers()};
    for (const auto& shard : shards_) {
      out.arrays.emplace_back();
      const auto copy = [&](std::size_t piece, const PieceArrays& from) {
        out.arrays.back().emplace_back();
        const auto keep = [&](const std::byte* array) {
          const auto* values = reinterpret_cast<const double*>(array);
          out.arrays.back().back().emplace_back(values, values + shard->pieces()[piece].elements());
        };
        keep(from.weights);
        for (const std::byte* vector : from.vectors) keep(vector);
      };
      throw_if_error(shard->save(copy).status());
    }
    return out;
  }

  /// Until there is nothing left to do.
  void work() {
    Ledger::Outcome outcome;
    for (;;) {
      const Ledger::Turn turn = session_->ledger().next(std::exchange(outcome, {})).take_or_throw();
      if (coordinator_) {
        throw_if_error(coordinator_->status());
        if (coordinator_->has_converged()) throw_if_error(session_->ledger().stop(-1));
      }
      if (turn.task) {
        if (hook_ && !hook_(*turn.task)) return;
        outcome = compute(*turn.task);
      } else if (turn.all_done || turn.stop_signal != 0) {
        break;
      } else {
        const Duration look = turn.again > Duration(0) ? turn.again : std::chrono::seconds(5);
        throw_if_error(session_->ledger().wait(Deadline::after(look)));
      }
    }
    throw_if_error(session_->ledger().leave());
    if (coordinator_) throw_if_error(coordinator_->finish());
  }

  Vector weights() {
    std::vector<Shard::View> views;
    for (const auto& shard : shards_) views.push_back(shard->look().take_or_throw());
    return all_of(views, shards_);
  }
  protocol::ShardState state() const { return shards_[0]->state().take_or_throw(); }
  Status finish() { return session_->finish(); }
  int computed = 0;
  int dropped = 0;

 private:
  Ledger::Outcome compute(const StepTask& task) {
    std::vector<Shard::View> views;
    for (const auto& shard : shards_) views.push_back(shard->read().take_or_throw());
    const std::size_t each =
        logistic().samples() / static_cast<std::size_t>(terms_.policy.portions);
    const std::size_t begin = static_cast<std::size_t>(task.part) * each;
    Vector g(kFeatures);
    const double loss = logistic().part(all_of(views, shards_), g, begin, begin + each);
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      std::vector<PushedPiece> pieces;
      for (const ShardPiece& piece : shards_[s]->pieces())
        pieces.push_back({.array = &g[place_of(piece)]});
      const Shard::Pushed pushed = shards_[s]
                                       ->push({.pieces = pieces,
                                               .weight = static_cast<double>(each),
                                               .loss_sum = loss * static_cast<double>(each),
                                               .sequence = sequence_,
                                               .portion = task.part,
                                               .batch = task.step - first_step_})
                                       .take_or_throw();
      if (pushed.decision.action == protocol::PushAction::kDrop) ++dropped;
    }
    ++sequence_;
    ++computed;
    return {.loss_sum = loss * static_cast<double>(each),
            .samples = static_cast<std::int64_t>(each)};
  }

  void set(Saved saved) {
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      for (std::size_t i = 0; i < shards_[s]->pieces().size(); ++i) {
        PieceArrays to;
        for (Vector& array : saved.arrays[s][i]) {
          auto* const begin = reinterpret_cast<std::byte*>(array.data());
          (to.weights == nullptr) ? void(to.weights = begin) : to.vectors.push_back(begin);
        }
        throw_if_error(shards_[s]->set(i, to));
      }
    }
  }

  RunTerms terms_;
  Hook hook_;
  std::shared_ptr<WorkerSession> session_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::optional<StepCoordinator> coordinator_;
  std::uint64_t sequence_ = 0, first_step_ = 0;
};

/// Weights after `steps` evaluations of the whole batch.
Vector in_one_thread(const optim::Options& options, int steps) {
  optim::Lbfgs method(options);
  optim::LocalSpace<double> space(Vector(kFeatures), optim::Lbfgs::vectors(options));
  Vector g(kFeatures);
  for (int i = 0; i < steps; ++i) {
    const double loss = logistic()(space.weights(), g);
    space.set_gradient(loss, g);
    if (method.next(options.lr, space).take_or_throw() == optim::Lbfgs::Outcome::kConverged) break;
  }
  throw_if_error(method.finish(space));
  return space.weights();
}

double distance(const Vector& a, const Vector& b) {
  const Vector d = optim::sum_of(a, -1, b);
  return std::sqrt(optim::times(d, d));
}

WorkerSession::Options options_of(const ServedRun& a, const ServedRun& b, int worker, int workers,
                                  bool share_memory = true) {
  WorkerSession::Options options =
      session_options(a.address(), worker, workers, kLong, share_memory);
  options.servers.push_back(b.address());
  return options;
}

struct PortionsCase {
  bool share_memory = true;
  int workers = 3;
};
class PortionsRun : public testing::TestWithParam<PortionsCase> {};

// The acceptance test of Sandblaster L-BFGS: to 1e-8 that of one machine, with history 10.
TEST_P(PortionsRun, LbfgsIsThatOfOneMachine) {
  const auto [share_memory, workers] = GetParam();
  const optim::Options optimizer{.kind = Kind::kLbfgs, .lr = 1, .history = 10};
  for (const int steps : {1, 2, 9, 30}) {
    ServedRun first, second;
    std::vector<std::thread> others;
    const RunTerms terms = terms_for(workers, optimizer);
    for (int w = 1; w < workers; ++w) {
      others.emplace_back([&, w, shared = share_memory] {
        BatchWorker other(options_of(first, second, w, terms.workers, shared), terms, 0);
        other.work();
        EXPECT_TRUE(other.finish().ok());
      });
    }
    BatchWorker chief(options_of(first, second, 0, workers, share_memory), terms,
                      static_cast<std::uint64_t>(steps));
    chief.work();
    for (std::thread& t : others) t.join();
    EXPECT_LT(distance(chief.weights(), in_one_thread(optimizer, steps)), 1e-8) << steps;
    EXPECT_TRUE(chief.finish().ok());
    EXPECT_TRUE(first.outcome().ok()) << first.outcome().to_string();
  }
}

// The rule is that of the shards: each batch is one update with the gradient of all samples.
TEST_P(PortionsRun, OtherOptimizersUpdateOncePerBatch) {
  const auto [share_memory, workers] = GetParam();
  ServedRun first, second;
  const RunTerms terms = terms_for(workers, {.kind = Kind::kSgd, .lr = 0.5});
  std::vector<std::thread> others;
  for (int w = 1; w < workers; ++w) {
    others.emplace_back([&, w, shared = share_memory] {
      BatchWorker other(options_of(first, second, w, terms.workers, shared), terms, 0);
      other.work();
      EXPECT_TRUE(other.finish().ok());
    });
  }
  BatchWorker chief(options_of(first, second, 0, workers, share_memory), terms, 20);
  chief.work();
  for (std::thread& t : others) t.join();
  Vector w(kFeatures), g(kFeatures);
  for (int i = 0; i < 20; ++i) {
    (void)logistic()(w, g);
    w = optim::sum_of(w, -0.5, g);
  }
  EXPECT_LT(distance(chief.weights(), w), 1e-12);
  EXPECT_EQ(chief.state().version, 20u);
  EXPECT_TRUE(chief.finish().ok());
}

INSTANTIATE_TEST_SUITE_P(Runs, PortionsRun,
                         testing::Values(PortionsCase{true, 1}, PortionsCase{true, 3},
                                         PortionsCase{false, 3}),
                         [](const auto& test) {
                           return (test.param.share_memory ? "Mapped" : "Remote") +
                                  std::to_string(test.param.workers);
                         });

// One worker, so that gradients are summed in one order. It saves in the middle of a batch, while
// the coordinator may be updating, and at the end, where the weights are the best ones found.
void expect_resumes_to_the_bit(bool share_memory) {
  constexpr std::uint64_t kSteps = 25;
  const RunTerms terms = terms_for(1, {.kind = Kind::kLbfgs, .lr = 1, .history = 4});
  const auto run = [&](std::uint64_t steps, const Saved* resumed, std::optional<int> save_at) {
    ServedRun first, second;
    std::optional<BatchWorker> chief;
    std::optional<Saved> saved;
    int tasks = 0;
    const auto save_in_time = [&](const StepTask&) {
      if (save_at && tasks++ == *save_at) saved = chief->save();
      return true;
    };
    chief.emplace(options_of(first, second, 0, 1, share_memory), terms, steps, save_in_time,
                  resumed);
    chief->work();
    std::pair out(chief->weights(), saved ? *saved : chief->save());
    EXPECT_TRUE(chief->finish().ok());
    return out;
  };
  const Vector whole = run(kSteps, nullptr, std::nullopt).first;
  const std::vector<std::uint64_t> cuts{1, 2, 7, 16};
  for (const std::uint64_t cut : std::span(cuts).first(kSanitized ? 2 : 4)) {
    const Saved at_end = run(cut, nullptr, std::nullopt).second;
    EXPECT_EQ(at_end.step, cut);
    EXPECT_EQ(run(kSteps, &at_end, std::nullopt).first, whole) << "ended after " << cut;
    const Saved between = run(kSteps, nullptr, static_cast<int>(cut) * kPortions + 1).second;
    EXPECT_EQ(between.step, cut);
    EXPECT_EQ(run(kSteps, &between, std::nullopt).first, whole) << "saved after " << cut;
  }
}

TEST(Portions, ARunThatResumesHasTheBitsOfOneThatWasNotCut) {
  for (const bool share_memory : {true, false}) expect_resumes_to_the_bit(share_memory);
}

// A worker keeps a portion in hand: another one computes it, too, and the run goes on.
TEST(Portions, AStuckWorkerHoldsNobodyUp) {
  ServedRun first, second;
  const optim::Options optimizer{.kind = Kind::kLbfgs, .lr = 1};
  const RunTerms terms = terms_for(2, optimizer);
  std::mutex mutex;
  std::condition_variable changed;
  bool is_stuck = false, is_over = false;
  std::thread stuck([&] {
    int tasks = 0;
    BatchWorker other(options_of(first, second, 1, 2), terms, 0, [&](const StepTask&) {
      if (++tasks != 3) return true;
      std::unique_lock lock(mutex);
      is_stuck = true;
      changed.notify_all();
      changed.wait(lock, [&] { return is_over; });
      return true;
    });
    other.work();
    EXPECT_GE(other.dropped, 2) << "what it had in hand was late, on both shards";
    EXPECT_TRUE(other.finish().ok());
  });
  // the run must not be over before the other one is stuck
  BatchWorker chief(options_of(first, second, 0, 2), terms, 25, [&](const StepTask&) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_stuck; });
    return true;
  });
  chief.work();
  {
    const std::lock_guard lock(mutex);
    is_over = true;
  }
  changed.notify_all();
  stuck.join();
  EXPECT_LT(distance(chief.weights(), in_one_thread(optimizer, 25)), 1e-8);
  EXPECT_TRUE(chief.finish().ok());
}

// Dean et al. (Sandblaster): the servers, ledgers and coordinator of a run, and workers of which
// one is slow. What is measured is who waits for whom: a portion takes time, but no processor.
TEST(Portions, AWorkerThatIsTenTimesSlowerDoesNotHoldUpTheOthers) {
  constexpr int kWorkers = 4, kEach = 10, kSteps = 5;
  const auto run = [&](int slowness, int& by_slow) {
    ServedRun server;
    const RunTerms terms = terms_for(kWorkers, {.kind = Kind::kSgd}, kWorkers * kEach);
    const auto takes = [](int ms) {
      return [ms](const StepTask&) { return ::poll(nullptr, 0, ms) == 0; };
    };
    std::vector<std::thread> others;
    for (int w = 1; w < kWorkers; ++w) {
      others.emplace_back([&, w] {
        const bool is_slow = w == kWorkers - 1;
        BatchWorker other(session_options(server.address(), w, kWorkers), terms, 0,
                          takes(is_slow ? 10 * slowness : 10));
        other.work();
        if (is_slow) by_slow = other.computed;
        EXPECT_TRUE(other.finish().ok());
      });
    }
    BatchWorker chief(session_options(server.address(), 0, kWorkers), terms, kSteps, takes(10));
    const TimePoint began = std::chrono::steady_clock::now();
    chief.work();
    const Duration took = std::chrono::steady_clock::now() - began;
    for (std::thread& t : others) t.join();
    EXPECT_EQ(chief.state().version, std::uint64_t{kSteps});
    EXPECT_TRUE(chief.finish().ok());
    return took;
  };
  int by_equal = 0, by_slow = 0;
  const Duration equal = run(1, by_equal), slow = run(10, by_slow);
  EXPECT_LE(by_slow, kSteps * kEach / 4) << "of its share of " << kSteps * kEach;
  EXPECT_LT(slow, equal * 2 + std::chrono::seconds(2))
      << slow.count() << " ns beside " << equal.count();
}

TEST(Portions, TheRunEndsWhenItHasConverged) {
  ServedRun first, second;
  const optim::Options optimizer{.kind = Kind::kLbfgs, .lr = 1};
  BatchWorker chief(options_of(first, second, 0, 1), terms_for(1, optimizer), 10'000);
  chief.work();
  EXPECT_LT(chief.computed, 60 * kPortions);
  Vector g(kFeatures);
  (void)logistic()(chief.weights(), g);
  EXPECT_LT(std::sqrt(optim::times(g, g)), 1e-7);
  EXPECT_TRUE(chief.finish().ok());
}

// Killed with a portion in hand: its own process, so that the servers see it end.
TEST(Portions, WhatALostWorkerHadInHandIsComputedByOthers) {
  const optim::Options optimizer{.kind = Kind::kLbfgs, .lr = 1};
  WorkerProcess victim([&](const transport::HostPort& server) {
    int tasks = 0;
    BatchWorker other(session_options(server, 1, 2), terms_for(2, optimizer), 0,
                      [&](const StepTask&) {
                        if (++tasks == 5) std::raise(SIGKILL);
                        return true;
                      });
    other.work();
    return 0;
  });
  ServedRun run;
  victim.start(run.address().port);
  std::optional<BatchWorker> chief;
  chief.emplace(session_options(run.address(), 0, 2), terms_for(2, optimizer), 40,
                [&, waited = false](const StepTask&) mutable {
                  // so that the other one has a portion of the first steps
                  if (!std::exchange(waited, true)) {
                    EXPECT_TRUE(comes_true([&] { return chief->state().worker(1).pushes > 0; }));
                  }
                  return true;
                });
  chief->work();
  EXPECT_EQ(victim.exit_code(), -1);
  EXPECT_LT(distance(chief->weights(), in_one_thread(optimizer, 40)), 1e-8);
  EXPECT_TRUE(chief->finish().ok());
}

// It is no member of the shards, and workers have no commands.
TEST(Portions, ACoordinatorAndWorkersMayAskForDifferentThings) {
  const auto run = HostedRun::create(2, 0, 1).take_or_throw();
  throw_if_error(run->create_shards(terms_for(2, {.kind = Kind::kLbfgs})));
  const RequestExecutor worker(*run, 1), coordinator(*run, run->coordinator());
  for (const DataOp op : {DataOp::kRun, DataOp::kAdvance}) {
    EXPECT_FALSE(worker.fits({.op = op, .given = {}}));
    EXPECT_TRUE(coordinator.fits({.op = op, .given = {}}));
  }
  for (const DataOp op : {DataOp::kRead, DataOp::kLook, DataOp::kSave, DataOp::kLeave,
                          DataOp::kJoin, DataOp::kState, DataOp::kNext, DataOp::kStop}) {
    EXPECT_TRUE(worker.fits({.op = op, .given = {}}));
    EXPECT_FALSE(coordinator.fits({.op = op, .given = {}}));
  }
  EXPECT_TRUE(coordinator.fits({.op = DataOp::kLookAtLedger, .given = {}}));
  EXPECT_TRUE(coordinator.fits({.op = DataOp::kWait, .given = {}}));
}

TEST(Portions, WhatDoesNotFitIsRefused) {
  RunTerms terms = terms_for(1, {.kind = Kind::kLbfgs});
  EXPECT_TRUE(check(terms).ok());
  terms.policy.kind = protocol::PolicyOptions::Kind::kAsync;
  EXPECT_THAT(check(terms).message(), HasSubstr("use the policy portions"));

  ServedRun first, second;
  BatchWorker chief(options_of(first, second, 0, 1), terms_for(1, {.kind = Kind::kSgd}), 0);
  SharedLedger ledger(1, 0);
  std::vector<std::max_align_t> memory(SharedLedger::bytes(1) / sizeof(std::max_align_t) + 8);
  auto* begin = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  ledger.create(begin);
  EXPECT_THAT(ledger.deal({.steps = 1, .portions = 513}).message(), HasSubstr("up to 512"));
  EXPECT_THAT(ledger.deal({.steps = 1, .portions = -1}).message(), HasSubstr("up to 512"));
  EXPECT_FALSE(ledger.advance(1).ok()) << "without portions";
  throw_if_error(ledger.deal({.steps = 4, .portions = 2}));
  EXPECT_TRUE(ledger.advance(2).ok());
  EXPECT_FALSE(ledger.advance(1).ok());
  EXPECT_FALSE(ledger.advance(5).ok());
  EXPECT_TRUE(chief.finish().ok());
}

}  // namespace
}  // namespace stormo::server
