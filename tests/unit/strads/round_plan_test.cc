// A round does what its plan says, action by action, on every rank; and each action is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <stormo/strads/factorisation.h>
#include <stormo/strads/lasso.h>
#include <stormo/strads/made_data.h>

#include "runs.h"

namespace stormo::strads {
namespace {

using plan::Action;
using plan::StepPlan;
using protocol::Scheduler;

constexpr std::int64_t kRounds = 7;

/// A program, and how its blocks are chosen.
template <class Program>
struct Way {
  std::string name;
  MakeProgram<Program> make;
  protocol::ScheduleOptions schedule;

  Scheduler scheduler() const { return Scheduler::make(schedule).take_or_throw(); }
};

Way<Lasso> lasso(int depth) {
  auto problem = std::make_shared<LassoProblem>(
      make_regression({.rows = 40, .columns = 30, .nonzeros = 10, .group = 5}));
  problem->lambda = 0.1 * largest_lambda(problem->x, problem->y);
  return {"lasso, depth " + std::to_string(depth),
          [problem](int worker, int workers) {
            return Lasso::make(*problem, worker, workers).take_or_throw();
          },
          {.blocks = 30, .round = 4, .depth = depth}};
}

Way<Factorisation> factorisation() {
  auto problem = std::make_shared<FactorisationProblem>(FactorisationProblem{
      .ratings = make_ratings({.rows = 20, .columns = 10, .known = 5, .rank = 2}), .rank = 2});
  return {"factorisation",
          [problem](int worker, int workers) {
            return Factorisation::make(*problem, worker, workers).take_or_throw();
          },
          {.blocks = 4, .rotation = Factorisation::rotation(2, 1)}};
}

/// What a worker has after kRounds rounds and an agree.
struct Outcome {
  std::vector<std::string> trace = {};
  std::vector<double> common = {};
  double objective = 0;
};

Outcome outcome_of(RoundsRun& run) {
  Outcome out;
  run.on_done([&out](const Action& a) { out.trace.push_back(to_text(a)); });
  throw_if_error(run.go_on(kRounds));
  out.objective = run.judge().take_or_throw().objective;
  out.common = run.workers().first().values().common;
  return out;
}

/// On ranks that are threads; kBadPlan where the plan is refused.
template <class Program>
Result<std::vector<Outcome>> train(const Way<Program>& way, const StepPlan& plan) {
  const int workers = plan.mesh.size();
  auto group = comm::make_inproc_group(workers).take_or_throw();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(workers));
  std::vector<std::thread> threads;
  Status refused;
  std::mutex mutex;
  for (auto& world : group) {
    threads.emplace_back([&, world = world.get()] {
      auto run =
          RoundsRun::make(Workers(*world, way.make(world->rank(), workers)), way.scheduler(), plan);
      if (run.ok()) {
        outcomes[static_cast<std::size_t>(world->rank())] = outcome_of(*run);
      } else {
        const std::lock_guard lock(mutex);
        refused = run.status();
      }
      throw_if_error(world->finalize(Deadline::never()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!refused.ok()) return refused;
  return outcomes;
}

template <class Program>
StepPlan plan_for(const Way<Program>& way, int workers) {
  return round_plan(way.make(0, workers)->variables(), workers, way.schedule, {.every = kRounds})
      .take_or_throw();
}

/// Ranks and virtual time do what the plan says, and both the same.
template <class Program>
void expect_plan_executed(const Way<Program>& way) {
  for (const int workers : {1, 2, 3}) {
    const StepPlan plan = plan_for(way, workers);
    std::vector<std::unique_ptr<BlockProgram>> programs;
    for (int w = 0; w < workers; ++w) programs.push_back(way.make(w, workers));
    auto simulated = RoundsRun::make(Workers(std::move(programs)), way.scheduler(), plan,
                                     protocol::VirtualWorkers{})
                         .take_or_throw();
    const Outcome expected = outcome_of(simulated);
    EXPECT_EQ(expected.trace, said_by(plan, kRounds)) << way.name;
    for (const Outcome& rank : train(way, plan).take_or_throw()) {
      EXPECT_EQ(rank.trace, expected.trace) << way.name;
      EXPECT_EQ(rank.common, expected.common) << way.name;
      EXPECT_EQ(rank.objective, expected.objective) << way.name;
    }
  }
}

TEST(RoundPlan, IsWhatRanksAndVirtualTimeExecute) {
  for (const int depth : {0, 1, 3}) expect_plan_executed(lasso(depth));
  expect_plan_executed(factorisation());
}

TEST(RoundPlan, SaysWhatARoundDoes) {
  std::vector<std::string> actions;
  for (const Action& a : plan_for(lasso(2), 4).actions) actions.push_back(to_text(a));
  EXPECT_THAT(actions, ::testing::ElementsAre("load", "choose", "forward 0-0", "loss",
                                              "backward 0-0", "all_reduce 0-0 over dp async",
                                              "update 0-0 delay 2", "agree every 7"));
  // so many rounds of 4 have an update for each of 30 columns; or those that a drain needs
  for (const auto& [depth, every] : {std::pair{0, 8}, {2, 60}}) {
    const Way<Lasso> way = lasso(depth);
    auto plan = round_plan(way.make(0, 1)->variables(), 1, way.schedule, {.updates = 30});
    EXPECT_EQ(std::move(plan).take_or_throw().actions.back().every, every);
  }
}

/// Without an action, twice, with another delay, or in another place it is refused; or it is
/// executed as it says, and ranks keep equal values.
template <class Program>
void expect_every_mutant_decided(const Way<Program>& way) {
  const StepPlan plan = plan_for(way, 2);
  const auto at = [](StepPlan& p, std::size_t i) {
    return p.actions.begin() + static_cast<std::ptrdiff_t>(i);
  };
  const auto refused = [&](const StepPlan& mutant) {
    const auto outcomes = train(way, mutant);
    if (!outcomes.ok()) return outcomes.status().code() == Code::kBadPlan;
    for (const Outcome& rank : *outcomes) {
      EXPECT_EQ(rank.trace, said_by(mutant, kRounds)) << to_text(mutant);
      EXPECT_EQ(rank.common, outcomes->front().common) << to_text(mutant);
    }
    return false;
  };
  int moved = 0;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    StepPlan without = plan, twice = plan, later = plan;
    without.actions.erase(at(without, i));
    twice.actions.insert(at(twice, i), plan.actions[i]);
    later.actions[i].delay += 1;
    EXPECT_TRUE(refused(without)) << way.name << " without " << describe(plan, i);
    EXPECT_TRUE(refused(twice)) << way.name << " twice " << describe(plan, i);
    EXPECT_TRUE(refused(later)) << way.name << " later " << describe(plan, i);
    for (std::size_t to = 0; to < plan.actions.size(); ++to) {
      StepPlan elsewhere = without;
      elsewhere.actions.insert(at(elsewhere, to), plan.actions[i]);
      if (elsewhere != plan) moved += refused(elsewhere) ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 20) << way.name;
}

TEST(RoundPlan, EveryActionIsNeededOnceAndInItsPlace) {
  for (const int depth : {0, 2}) expect_every_mutant_decided(lasso(depth));
  expect_every_mutant_decided(factorisation());
}

TEST(RoundPlan, OfOtherWorkersOrOtherFormsIsRefused) {
  const Way<Lasso> way = lasso(0);
  const StepPlan plan = plan_for(way, 2);
  EXPECT_TRUE(check_round_plan(plan, 2, 0).ok());
  const auto wrong = [&](const auto& change, int workers = 2, int depth = 0) {
    StepPlan p = plan;
    change(p);
    return check_round_plan(p, workers, depth).message();
  };
  const auto stays = [](StepPlan&) {};
  EXPECT_THAT(wrong(stays, 3), ::testing::HasSubstr("none of rounds of 3 workers"));
  EXPECT_THAT(wrong(stays, 2, 1), ::testing::HasSubstr("with 1 in flight"));
  EXPECT_THAT(wrong([](StepPlan& p) {
                p.chosen = false;
                std::erase_if(p.actions,
                              [](const Action& a) { return a.kind == plan::ActionKind::kChoose; });
                p.actions.back().every = 1;
              }),
              ::testing::HasSubstr("none of rounds"));
  EXPECT_THAT(wrong([](StepPlan& p) { p.actions[5].codec = Codec::kBFloat16; }),
              ::testing::HasSubstr("workers gather their parts"));
  EXPECT_THAT(wrong([](StepPlan& p) {
                p.actions.insert(p.actions.end() - 2, {.kind = plan::ActionKind::kFindUnused});
              }),
              ::testing::HasSubstr("(find_unused): a round has no such action"));
}

}  // namespace
}  // namespace stormo::strads
