// Lasso by scheduled coordinate descent, against cyclic coordinate descent on dense columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include <stormo/strads/lasso.h>
#include <stormo/strads/made_data.h>

#include "runs.h"
#include "tests/sanitized.h"

namespace stormo::strads {
namespace {

using protocol::ScheduleOptions;
using protocol::Scheduler;

using Dense = std::vector<std::vector<double>>;  // by column

Dense dense(const SparseColumns& x) {
  Dense out(static_cast<std::size_t>(x.columns()),
            std::vector<double>(static_cast<std::size_t>(x.rows())));
  for (std::int64_t c = 0; c < x.columns(); ++c) {
    for (const auto [row, value] : x.column(c)) {
      out[static_cast<std::size_t>(c)][static_cast<std::size_t>(row)] = value;
    }
  }
  return out;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double objective(const Dense& x, const LassoProblem& p, const std::vector<double>& b) {
  std::vector<double> r = p.y;
  double norm = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    norm += std::abs(b[j]);
    for (std::size_t i = 0; i < r.size(); ++i) r[i] -= x[j][i] * b[j];
  }
  return dot(r, r) / 2 + p.lambda * norm;
}

/// The oracle: one coefficient after the other, until a pass changes nothing.
std::vector<double> cyclic_descent(const Dense& x, const LassoProblem& p) {
  std::vector<double> b(x.size()), r = p.y;
  double moved = 1;
  for (int pass = 0; pass < 100000 && moved > 1e-13; ++pass) {
    moved = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double square = dot(x[j], x[j]);
      const double z = dot(x[j], r) + square * b[j];
      const double to = std::copysign(std::max(std::abs(z) - p.lambda, 0.0), z) / square;
      for (std::size_t i = 0; i < r.size(); ++i) r[i] -= x[j][i] * (to - b[j]);
      moved = std::max(moved, std::abs(to - b[j]));
      b[j] = to;
    }
  }
  return b;
}

/// 200 columns in 4 groups of 50, correlated by 0.9 in a group.
LassoProblem correlated() {
  LassoProblem p = make_regression({.rows = 400, .columns = 200, .nonzeros = 400});
  p.lambda = 0.05 * largest_lambda(p.x, p.y);
  return p;
}

MakeProgram<Lasso> lasso_of(const LassoProblem& problem) {
  return [&problem](int worker, int workers) {
    return Lasso::make(problem, worker, workers).take_or_throw();
  };
}

std::shared_ptr<const protocol::Conflicts> conflicts_of(const LassoProblem& p, double threshold) {
  return std::make_shared<const protocol::Conflicts>(
      correlated_columns(p.x, threshold).take_or_throw());
}

TEST(StradsLasso, ConflictsAreExactlyThePairsAtOrAboveTheThreshold) {
  for (const std::int64_t nonzeros : {60, 8}) {
    const LassoProblem p =
        make_regression({.rows = 60, .columns = 90, .nonzeros = nonzeros, .group = 15});
    const Dense x = dense(p.x);
    for (const double threshold : {0.05, 0.1, 0.5, 0.85}) {
      const protocol::Conflicts conflicts = correlated_columns(p.x, threshold).take_or_throw();
      std::int64_t expected = 0;
      for (std::size_t a = 0; a < x.size(); ++a) {
        const auto others = conflicts.of_block(static_cast<std::int64_t>(a));
        for (std::size_t b = 0; b < x.size(); ++b) {
          const double cosine =
              std::abs(dot(x[a], x[b])) / std::sqrt(dot(x[a], x[a]) * dot(x[b], x[b]));
          const bool listed = std::ranges::count(others, static_cast<std::int32_t>(b)) == 1;
          ASSERT_EQ(listed, a != b && cosine >= threshold) << a << " " << b << " " << cosine;
          expected += listed ? 1 : 0;
        }
      }
      EXPECT_EQ(2 * conflicts.pairs(), expected);
      EXPECT_GT(expected, 0);
    }
  }
}

/// Dense columns of equal length.
SparseColumns columns_of(const Dense& dense) {
  SparseColumns out(std::ssize(dense.at(0)));
  for (const std::vector<double>& column : dense) {
    std::vector<SparseColumns::Entry> entries;
    for (std::size_t i = 0; i < column.size(); ++i) {
      if (column[i] != 0) entries.push_back({static_cast<std::int32_t>(i), column[i]});
    }
    out.add_column(entries);
  }
  return out;
}

TEST(StradsLasso, APairIsListedOnceAtAnyScaleOfTheColumns) {
  for (const double v : {1e-150, 1e-90, 1.0, 1e80, 1e150}) {
    // after two rows the sum of the first two columns is 0, so it is begun twice
    const SparseColumns x = columns_of({{v, v, v}, {v, -v, v}, {v, v, v}, {0, 0, 0}});
    const auto conflicts = correlated_columns(x, 0.3).take_or_throw();
    EXPECT_EQ(conflicts.pairs(), 3) << v;
    const auto equal_ones = correlated_columns(x, 0.9).take_or_throw();
    EXPECT_EQ(equal_ones.pairs(), 1) << v;
    EXPECT_THAT(equal_ones.of_block(0), ::testing::ElementsAre(2)) << v;
  }
  const SparseColumns tiny = columns_of({{1e-200, 1e-200}, {1e-200, 1e-200}});
  EXPECT_EQ(correlated_columns(tiny, 0.5).take_or_throw().pairs(), 0) << "their squares are 0";
}

TEST(StradsLasso, MorePairsThanMemoryHoldsAreRefused) {
  const SparseColumns x = columns_of(Dense(50, {1, 2}));  // all of 50 * 49 / 2 pairs
  EXPECT_EQ(correlated_columns(x, 0.5, 1225 * 16).take_or_throw().pairs(), 1225);
  const Status status = correlated_columns(x, 0.5, 1225 * 16 - 1).status();
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("more than 1224 pairs"));
}

TEST(StradsLasso, NoScheduledSetHasAPairAtOrAboveTheThreshold) {
  const LassoProblem p = correlated();
  const Dense x = dense(p.x);
  Scheduler scheduler =
      Scheduler::make({.blocks = 200, .round = 32, .depth = 2}, conflicts_of(p, 0.2))
          .take_or_throw();
  std::int64_t pairs = 0;
  const auto lasso = Lasso::make(p, 0, 1).take_or_throw();
  for (std::int64_t round = 0; round < 300; ++round) {
    while (scheduler.may_begin()) scheduler.begin();
    std::vector<std::int64_t> busy;
    for (const auto& flight : scheduler.in_flight()) {
      busy.insert(busy.end(), flight.begin(), flight.end());
    }
    for (std::size_t i = 0; i < busy.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k, ++pairs) {
        const auto& a = x[static_cast<std::size_t>(busy[i])];
        const auto& b = x[static_cast<std::size_t>(busy[k])];
        ASSERT_LT(std::abs(dot(a, b)), 0.2 * std::sqrt(dot(a, a) * dot(b, b)));
      }
    }
    const auto blocks = scheduler.in_flight().front();
    std::vector<double> part(blocks.size()), values(blocks.size()), changes(blocks.size());
    lasso->backward(blocks, part);
    lasso->aggregate(blocks, part, values, changes);
    lasso->set(blocks, values);
    throw_if_error(scheduler.end(changes));
  }
  EXPECT_GT(pairs, 300);
}

TEST(StradsLasso, ScheduledUpdatesReachTheSequentialObjectiveWhere32NaiveOnesDiverge) {
  const LassoProblem p = correlated();
  const Dense x = dense(p.x);
  const std::vector<double> oracle = cyclic_descent(x, p);
  const double best = objective(x, p, oracle);
  const double begin = objective(x, p, std::vector<double>(200));

  RoundsRun naive = virtual_run(
      lasso_of(p), Scheduler::make({.blocks = 200, .round = 32, .priority = false}).take_or_throw(),
      2);
  throw_if_error(naive.go_on(1000));
  const double diverged = naive.judge().take_or_throw().objective;
  EXPECT_FALSE(diverged < 100 * begin) << diverged;

  for (const int depth : {0, 2}) {
    for (const bool priority : {true, false}) {
      if (kSanitized && priority != (depth > 0)) continue;  // two of the four
      RoundsRun run = virtual_run(
          lasso_of(p),
          Scheduler::make({.blocks = 200, .round = 32, .depth = depth, .priority = priority},
                          conflicts_of(p, 0.2))
              .take_or_throw(),
          2);
      throw_if_error(run.go_on(20000));
      const auto judged = run.judge().take_or_throw();
      EXPECT_NEAR(judged.objective, best, 1e-6 * best);
      EXPECT_NEAR(objective(x, p, worker_of<Lasso>(run, 1).coefficients()), judged.objective,
                  1e-9 * best);
      EXPECT_GE(*judged.gap, judged.objective - best - 1e-12);
      EXPECT_LT(*judged.gap, 1e-5 * best);
      EXPECT_GT(run.updates(), depth == 0 ? 60000 : 20000);  // there are 4 groups
    }
  }
}

TEST(StradsLasso, PriorityNeedsFewerUpdatesWhereMostCoefficientsStayAtZero) {
  LassoProblem p = make_regression({.rows = 200, .columns = 800, .nonzeros = 200, .group = 10});
  p.lambda = 0.3 * largest_lambda(p.x, p.y);
  const auto updates_until = [&](bool priority) {
    RoundsRun run = virtual_run(
        lasso_of(p), Scheduler::make({.blocks = 800, .priority = priority}, conflicts_of(p, 0.2))
                         .take_or_throw());
    for (std::int64_t rounds = 20; rounds < 20000; rounds += 20) {
      throw_if_error(run.go_on(rounds));
      const Judgement now = run.judge().take_or_throw();
      if (*now.gap < 1e-5 * now.objective) return run.updates();
    }
    ADD_FAILURE() << "does not converge";
    return run.updates();
  };
  EXPECT_LT(updates_until(true), 0.8 * static_cast<double>(updates_until(false)));
}

TEST(StradsLasso, ARotationOfSingleColumnsIsCyclicDescent) {
  const LassoProblem p = correlated();
  ScheduleOptions options{.blocks = 200};
  options.rotation = protocol::all_in_turn(200, 1);
  RoundsRun run = virtual_run(lasso_of(p), Scheduler::make(options).take_or_throw());
  throw_if_error(run.go_on(200 * 3000));
  const std::vector<double> oracle = cyclic_descent(dense(p.x), p);
  for (std::size_t j = 0; j < 200; ++j) {
    ASSERT_NEAR(worker_of<Lasso>(run, 0).coefficients()[j], oracle[j], 1e-9);
  }
}

TEST(StradsLasso, RanksAndVirtualTimeGiveTheSameOrderAndTheSameBits) {
  LassoProblem p = make_regression({.rows = 500, .columns = 300, .nonzeros = 30, .group = 10});
  p.lambda = 0.1 * largest_lambda(p.x, p.y);
  for (const int workers : {1, 2, 3}) {
    for (const int depth : {0, 3}) {
      const Scheduler scheduler =
          Scheduler::make({.blocks = 300, .round = 8, .depth = depth}, conflicts_of(p, 0.1))
              .take_or_throw();
      // one worker is slow, so messages arrive in other orders than among threads
      RoundsRun simulated = virtual_run(lasso_of(p), scheduler, workers, {.slowness = {5}});
      throw_if_error(simulated.go_on(400));
      std::mutex mutex;
      run_ranks<Lasso>(
          lasso_of(p), scheduler, workers, 400, [&](const Lasso& lasso, const auto& run) {
            const std::lock_guard lock(mutex);
            EXPECT_EQ(run.order_hash(), simulated.order_hash());
            EXPECT_EQ(run.updates(), simulated.updates());
            for (int w = 0; w < workers; ++w) {
              EXPECT_EQ(lasso.coefficients(), worker_of<Lasso>(simulated, w).coefficients());
            }
          });
    }
  }
}

TEST(StradsLasso, AColumnOfZerosStaysAtZero) {
  LassoProblem p{.x = SparseColumns(3), .y = {1, 2, 3}, .lambda = 0.1};
  p.x.add_column({});
  const std::vector<SparseColumns::Entry> ones{{0, 1}, {2, 1}};
  p.x.add_column(ones);
  RoundsRun run = virtual_run(lasso_of(p),
                              Scheduler::make({.blocks = 2}, conflicts_of(p, 0.5)).take_or_throw());
  throw_if_error(run.go_on(50));
  EXPECT_EQ(worker_of<Lasso>(run, 0).coefficients()[0], 0);
  EXPECT_DOUBLE_EQ(worker_of<Lasso>(run, 0).coefficients()[1], (4 - 0.1) / 2);
}

TEST(StradsLasso, AWorkerWithoutRowsIsRefused) {
  const LassoProblem p{.x = SparseColumns(3), .y = {1, 2, 3}, .lambda = 0.1};
  EXPECT_TRUE(Lasso::make(p, 0, 3).ok());
  EXPECT_THAT(Lasso::make(p, 0, 4).status().message(),
              ::testing::HasSubstr("no rows are left for a rank: there are 3 for 4 ranks"));
}

}  // namespace
}  // namespace stormo::strads
