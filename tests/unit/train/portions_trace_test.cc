// L-BFGS with portions: for each portion that a worker takes, it does what the plan says, and the
// coordinator's updates are those of L-BFGS in one process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/server/coordinator/step_coordinator.h>

#include "tests/unit/server/server_run.h"
#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using plan::StepPlan;
using test::PlanRank;
using test::PlanRun;

constexpr int kWorkers = 2, kPortions = 3;
constexpr std::int64_t kRows = 14, kSteps = 4;

PlanRun run_of(Strategy::Kind kind) {
  const test::Problem problem = test::mlp_problem();
  TrainerOptions options;
  options.strategy.kind = kind;
  options.optimizer = {
      .kind = OptimizerOptions::Kind::kLbfgs, .lr = 1, .weight_decay = 0.01, .history = 4};
  options.servers.processes = 1;
  options.servers.policy = {.kind = protocol::PolicyOptions::Kind::kPortions,
                            .portions = kPortions};
  const test::Batch batch = problem.batches(1, kRows)[0];
  return {.plan = parallel::plan_for(options.strategy, problem.model(3)->shape(),
                                     {.ranks_per_host = {1}}, {})
                      .take_or_throw(),
          .hosts = {1},
          .problem = problem,
          .batches = std::vector(kSteps, batch),
          .options = options};
}

/// Of kRows rows.
std::pair<std::int64_t, std::int64_t> rows_of(int portion) {
  const std::int64_t begin = kRows * portion / kPortions;
  return {begin, kRows * (portion + 1) / kPortions - begin};
}

/// Takes portions until there are none left; returns how many.
std::size_t take_portions(PlanRank& rank, server::WorkerSession& session) {
  int portion = 0;
  rank.load = [&]() -> Result<data::Batch> {
    const auto [begin, rows] = rows_of(portion);
    const test::Batch mine = rank.run.batches[0].rows(begin, rows);
    return data::Batch{mine.x, mine.target};
  };
  server::Ledger::Outcome outcome;
  std::size_t taken = 0;
  for (;;) {
    const auto turn = session.ledger().next(std::exchange(outcome, {})).take_or_throw();
    if (turn.all_done) return taken;
    if (!turn.task) {
      throw_if_error(session.ledger().wait(Deadline::after(std::chrono::milliseconds(20))));
      continue;
    }
    portion = turn.task->part;
    rank.store().served()->begin_portion(portion, turn.task->step);
    if (taken++ == 0) throw_if_error(rank.store().served()->join());
    const StepOutcome done = rank.try_step().take_or_throw();
    outcome = {.loss_sum = done.loss_sum, .samples = done.samples};
  }
}

struct Worker {
  std::size_t portions = 0;
  std::vector<plan::Action> trace;
  test::Values values;
};

/// The first worker has the coordinator, and is the last one to leave.
Worker work(PlanRank& rank, server::WorkerSession& session, std::atomic<int>& working) {
  rank.runner();
  std::optional<server::StepCoordinator> coordinator;
  if (session.worker() == 0) {
    throw_if_error(
        session.ledger().deal({.first_step = 0, .steps = kSteps, .portions = kPortions}));
    coordinator.emplace(
        server::StepCoordinator::Options{.servers = session.coordinator(),
                                         .terms = session.ledger().terms().take_or_throw(),
                                         .optimizer = rank.run.options.optimizer,
                                         .learning_rate = [](std::uint64_t) { return 1.0; }});
    throw_if_error(coordinator->status());
    throw_if_error(session.open());
  }
  Worker out{.portions = take_portions(rank, session)};
  out.trace = std::move(rank.trace);
  throw_if_error(session.ledger().leave());
  --working;
  while (coordinator && working > 0) std::this_thread::yield();
  if (coordinator) throw_if_error(coordinator->finish());
  if (coordinator) out.values = rank.values();
  rank.end();
  throw_if_error(session.finish());
  return out;
}

TEST(PortionsTrace, IsThePlanForEachPortion) {
  server::ServedRun servers;
  std::vector<Worker> workers(kWorkers);
  std::vector<std::thread> threads;
  std::atomic<int> working = kWorkers;
  for (int w = 0; w < kWorkers; ++w) {
    threads.emplace_back([&, w] {
      PlanRun run = run_of(Strategy::Kind::kParameterServer);
      run.options.session =
          server::WorkerSession::connect(server::session_options(servers.address(), w, kWorkers),
                                         Deadline::after(std::chrono::seconds(10)))
              .take_or_throw();
      test::on_plan_ranks(run, [&](PlanRank& rank) {
        workers[static_cast<std::size_t>(w)] = work(rank, *run.options.session, working);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PlanRun run = run_of(Strategy::Kind::kParameterServer);
  std::size_t portions = 0;
  for (const Worker& w : workers) {
    test::expect_trace(w.trace, project(run.plan, 0), w.portions);
    portions += w.portions;
  }
  EXPECT_GE(portions, kSteps * kPortions);  // a portion may be taken twice

  PlanRun alone = run_of(Strategy::Kind::kOneDevice);
  test::on_plan_ranks(alone, [&](PlanRank& rank) {
    rank.steps(kSteps);
    throw_if_error(rank.store().optimizer().finish());
    test::expect_trace(rank.trace, project(alone.plan, 0), kSteps);
    test::expect_near(workers[0].values, rank.values(), 1e-9, "weights");
  });
}

TEST(PortionsTrace, NoActionCanBeLeftOutOrDoneTwice) {
  for (const auto kind : {Strategy::Kind::kParameterServer, Strategy::Kind::kOneDevice}) {
    const StepPlan plan = run_of(kind).plan;
    for (std::size_t i = 0; i < plan.actions.size(); ++i) {
      StepPlan without = plan, twice = plan;
      without.actions.erase(without.actions.begin() + static_cast<std::ptrdiff_t>(i));
      twice.actions.insert(twice.actions.begin() + static_cast<std::ptrdiff_t>(i), plan.actions[i]);
      EXPECT_FALSE(analysis::verify(without).ok()) << "without " << describe(plan, i);
      EXPECT_FALSE(analysis::verify(twice).ok()) << "twice " << describe(plan, i);
    }
  }
}

}  // namespace
}  // namespace stormo::train
