// Matrix factorisation by a rotation of blocks, against coordinate descent written anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include <stormo/strads/factorisation.h>
#include <stormo/strads/made_data.h>

#include "runs.h"

namespace stormo::strads {
namespace {

using protocol::Scheduler;

FactorisationProblem problem() {
  return {.ratings = make_ratings({.rows = 60, .columns = 40, .known = 12, .rank = 3}),
          .rank = 4,
          .lambda = 0.05,
          .seed = 3};
}

MakeProgram<Factorisation> factorisation_of(const FactorisationProblem& p) {
  return [&p](int worker, int workers) {
    return Factorisation::make(p, worker, workers).take_or_throw();
  };
}

Scheduler scheduler_of(const FactorisationProblem& p, int inner) {
  return Scheduler::make({.blocks = 2 * p.rank, .rotation = Factorisation::rotation(p.rank, inner)})
      .take_or_throw();
}

/// The oracle: W and H as tables, residuals computed anew for every element.
struct Oracle {
  explicit Oracle(const FactorisationProblem& p)
      : problem(p), rank(static_cast<std::size_t>(p.rank)) {
    h = Factorisation::make(p, 0, 1).take_or_throw()->h();
    w.assign(static_cast<std::size_t>(p.ratings.rows) * rank, 0);
  }
  double residual(const Rating& a) const {
    double out = a.value;
    for (std::size_t k = 0; k < rank; ++k) out -= at(w, a.row, k) * at(h, a.column, k);
    return out;
  }
  double at(const std::vector<double>& table, std::int32_t row, std::size_t k) const {
    return table[static_cast<std::size_t>(row) * rank + k];
  }
  /// Minimises over column k of W, or of H, with all others as they are.
  void minimise(bool of_w, std::size_t k) {
    std::vector<double>& mine = of_w ? w : h;
    std::vector<double> next = mine;
    for (std::int32_t i = 0; i < std::ssize(mine) / std::ssize(mine_row()); ++i) {
      double above = 0, below = problem.lambda;
      for (const Rating& a : problem.ratings.known) {
        if ((of_w ? a.row : a.column) != i) continue;
        const double other = of_w ? at(h, a.column, k) : at(w, a.row, k);
        above += (residual(a) + at(w, a.row, k) * at(h, a.column, k)) * other;
        below += other * other;
      }
      next[static_cast<std::size_t>(i) * rank + k] = above / below;
    }
    mine = next;
  }
  std::vector<double> mine_row() const { return std::vector<double>(rank); }
  double objective() const {
    double sum = 0;
    for (const Rating& a : problem.ratings.known) sum += residual(a) * residual(a);
    for (const double value : w) sum += problem.lambda * value * value;
    for (const double value : h) sum += problem.lambda * value * value;
    return sum / 2;
  }

  const FactorisationProblem& problem;
  std::size_t rank;
  std::vector<double> w, h;
};

TEST(StradsFactorisation, IsCoordinateDescentFactorByFactor) {
  const FactorisationProblem p = problem();
  Oracle oracle(p);
  const int passes = 5, inner = 2;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t k = 0; k < oracle.rank; ++k) {
      for (int i = 0; i < inner; ++i) {
        oracle.minimise(true, k);
        oracle.minimise(false, k);
      }
    }
  }
  for (const int workers : {1, 2, 4}) {
    RoundsRun run = virtual_run(factorisation_of(p), scheduler_of(p, inner), workers);
    throw_if_error(run.go_on(passes * p.rank * inner * 2));
    std::vector<double> w;
    for (int worker = 0; worker < workers; ++worker) {
      const auto& program = worker_of<Factorisation>(run, worker);
      const std::vector<double> rows = program.w();
      w.insert(w.end(), rows.begin(), rows.end());
      ASSERT_THAT(program.h(), ::testing::Pointwise(::testing::DoubleNear(1e-10), oracle.h));
    }
    ASSERT_THAT(w, ::testing::Pointwise(::testing::DoubleNear(1e-10), oracle.w));
    EXPECT_NEAR(run.judge().take_or_throw().objective, oracle.objective(), 1e-10);
  }
}

TEST(StradsFactorisation, BlocksOfARoundAreComputedFromTheValuesBeforeIt) {
  const FactorisationProblem p = problem();
  Oracle oracle(p);
  const std::vector<double> before = oracle.w;
  std::vector<double> after = before;
  for (const std::size_t k : {0, 2, 3}) {  // each alone, from the same values
    oracle.w = before;
    oracle.minimise(true, k);
    for (std::size_t i = k; i < after.size(); i += oracle.rank) after[i] = oracle.w[i];
  }
  oracle.w = after;
  const Scheduler scheduler =
      Scheduler::make({.blocks = 2 * p.rank, .rotation = {{0, 4, 6}}}).take_or_throw();
  RoundsRun run = virtual_run(factorisation_of(p), scheduler, 2);
  throw_if_error(run.go_on(1));
  std::vector<double> w;
  for (int worker = 0; worker < 2; ++worker) {
    const std::vector<double> rows = worker_of<Factorisation>(run, worker).w();
    w.insert(w.end(), rows.begin(), rows.end());
  }
  EXPECT_THAT(w, ::testing::Pointwise(::testing::DoubleNear(1e-10), oracle.w));
  EXPECT_NEAR(run.judge().take_or_throw().objective, oracle.objective(), 1e-10);
}

TEST(StradsFactorisation, FindsTheMatrixThatTheRatingsAreOf) {
  FactorisationProblem p{
      .ratings = make_ratings({.rows = 200, .columns = 100, .known = 40, .rank = 3, .noise = 0.01}),
      .rank = 3,
      .lambda = 0.01};
  RoundsRun run = virtual_run(factorisation_of(p), scheduler_of(p, 1), 2);
  throw_if_error(run.go_on(300 * 6));
  EXPECT_LT(run.judge().take_or_throw().objective,
            0.01 * static_cast<double>(p.ratings.known.size()) / 2);
}

TEST(StradsFactorisation, RanksAndVirtualTimeGiveTheSameBits) {
  const FactorisationProblem p = problem();
  for (const int workers : {1, 3}) {
    const Scheduler scheduler = scheduler_of(p, 1);
    RoundsRun simulated =
        virtual_run(factorisation_of(p), scheduler, workers, {.slowness = {1, 9}});
    throw_if_error(simulated.go_on(40));
    std::mutex mutex;
    int rank = 0;
    std::vector<std::vector<double>> found;
    run_ranks<Factorisation>(factorisation_of(p), scheduler, workers, 40,
                             [&](const Factorisation& program, const auto& run) {
                               const std::lock_guard lock(mutex);
                               EXPECT_EQ(run.order_hash(), simulated.order_hash());
                               EXPECT_EQ(program.h(), worker_of<Factorisation>(simulated, 0).h());
                               found.push_back(program.w());
                               ++rank;
                             });
    EXPECT_EQ(rank, workers);
    for (int w = 0; w < workers; ++w) {
      EXPECT_THAT(found, ::testing::Contains(worker_of<Factorisation>(simulated, w).w()));
    }
  }
}

TEST(StradsFactorisation, AWorkerWithoutRowsIsRefused) {
  const FactorisationProblem p{.ratings = {.rows = 2, .columns = 1, .known = {}}};
  EXPECT_THAT(Factorisation::make(p, 0, 3).status().message(),
              ::testing::HasSubstr("no rows are left for a rank: there are 2 for 3 ranks"));
}

}  // namespace
}  // namespace stormo::strads
