// Oracle: L-BFGS as in the textbook, with vectors in its two loops, in the same precision.
#include <stormo/optim/lbfgs.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "tests/unit/optim/local_vectors.h"

namespace stormo::optim {
namespace {

/// A function with its gradient.
using Loss = std::function<double(const Vector& at, Vector& gradient)>;

/// sum of 100 (x[2i+1] - x[2i]^2)^2 + (1 - x[2i])^2: a curved valley, with its minimum at 1.
double rosenbrock(const Vector& x, Vector& g) {
  double loss = 0;
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const double a = x[i + 1] - x[i] * x[i], b = 1 - x[i];
    loss += 100 * a * a + b * b;
    g[i] = -400 * a * x[i] - 2 * b;
    g[i + 1] = 200 * a;
  }
  return loss;
}

struct Minimum {
  std::vector<Vector> path;  // accepted points
  Vector weights;
  double loss = 0;
  bool converged = false;
};

/// Evaluates at most so often.
template <class T>
void run(Lbfgs& method, LocalSpace<T>& space, const Loss& loss, int evaluations) {
  Vector g(space.weights().size());
  for (int i = 0; i < evaluations && !method.has_converged(); ++i) {
    space.set_gradient(loss({space.weights().begin(), space.weights().end()}, g), g);
    (void)method.next(1, space).take_or_throw();
  }
}

Minimum minimise(const Loss& loss, const Vector& from, int evaluations,
                 Options options = {.kind = Options::Kind::kLbfgs}) {
  Lbfgs method(options);
  LocalSpace<double> space(from, Lbfgs::vectors(options));
  Minimum out;
  Vector g(from.size());
  for (int i = 0; i < evaluations && !out.converged; ++i) {
    const Vector at = space.weights();
    out.loss = loss(at, g);
    space.set_gradient(out.loss, g);
    const Lbfgs::Outcome next = method.next(1, space).take_or_throw();
    out.converged = next == Lbfgs::Outcome::kConverged;
    if (next == Lbfgs::Outcome::kStep) out.path.push_back(at);
  }
  throw_if_error(method.finish(space));
  out.weights = space.weights();
  out.loss = loss(out.weights, g);
  return out;
}

/// Accepted points of the textbook's method, with the same line search.
std::vector<Vector> textbook(const Loss& loss, Vector x, std::size_t points, std::size_t history) {
  std::vector<Vector> path = {x};
  std::deque<std::pair<Vector, Vector>> pairs;
  Vector g(x.size());
  double f = loss(x, g);
  while (path.size() < points) {
    Vector q = g;
    Vector alphas(pairs.size());
    for (std::size_t i = pairs.size(); i-- > 0;) {
      const auto& [s, y] = pairs[i];
      alphas[i] = times(s, q) / times(s, y);
      q = sum_of(q, -alphas[i], y);
    }
    if (!pairs.empty()) {
      const auto& [s, y] = pairs.back();
      for (double& v : q) v *= times(s, y) / times(y, y);
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto& [s, y] = pairs[i];
      q = sum_of(q, alphas[i] - times(y, q) / times(s, y), s);
    }
    const Vector direction = sum_of(Vector(x.size()), -1, q);
    const double first = pairs.empty() ? std::min(1.0, 1 / std::sqrt(times(g, g))) : 1;
    LineSearch search({.loss = f, .slope = times(g, direction)}, first);
    Vector there, g_there(x.size());
    auto outcome = LineSearch::Outcome::kGoOn;
    double f_there = 0;
    while (outcome == LineSearch::Outcome::kGoOn) {
      there = sum_of(x, search.next(), direction);
      f_there = loss(there, g_there);
      outcome = search.evaluated(f_there, times(g_there, direction));
    }
    if (outcome != LineSearch::Outcome::kAccepted) return path;
    if (pairs.size() == history) pairs.pop_front();
    pairs.emplace_back(sum_of(there, -1, x), sum_of(g_there, -1, g));
    x = there;
    g = g_there;
    f = f_there;
    path.push_back(x);
  }
  return path;
}

double distance(const Vector& a, const Vector& b) {
  const Vector d = sum_of(a, -1, b);
  return std::sqrt(times(d, d));
}

TEST(Lbfgs, TakesTheStepsOfTheTextbook) {
  for (const int history : {1, 3, 10}) {
    const Options options{.kind = Options::Kind::kLbfgs, .history = history};
    const Logistic loss(60, 12, 1e-2);
    const Minimum found = minimise(loss, Vector(12), 40, options);
    const std::vector<Vector> expected =
        textbook(loss, Vector(12), 12, static_cast<std::size_t>(history));
    ASSERT_GE(found.path.size(), 12u);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(distance(found.path[i], expected[i]), 1e-10) << history << ", step " << i;
    }
  }
}

TEST(Lbfgs, FindsTheMinimumOfAValley) {
  const Minimum found = minimise(rosenbrock, {-1.2, 1, -1.2, 1, 0, 0}, 200);
  EXPECT_TRUE(found.converged);
  for (const double x : found.weights) EXPECT_NEAR(x, 1, 1e-8);
}

TEST(Lbfgs, ConvergesWhereTheGradientIsZero) {
  const Logistic loss(200, 20, 1e-3);
  const Minimum found = minimise(loss, Vector(20), 200);
  EXPECT_TRUE(found.converged);
  Vector g(20);
  (void)loss(found.weights, g);
  EXPECT_LT(std::sqrt(times(g, g)), 1e-9);
}

TEST(Lbfgs, AddsThePenaltyOfWeightDecay) {
  const Options options{.kind = Options::Kind::kLbfgs, .weight_decay = 1e-2};
  const Minimum with = minimise(Logistic(60, 12, 1e-2), Vector(12), 100);
  const Minimum added = minimise(Logistic(60, 12, 0), Vector(12), 100, options);
  EXPECT_LT(distance(with.weights, added.weights), 1e-8);
}

TEST(Lbfgs, EndsAtTheBestPointAlsoWhenItIsInterrupted) {
  for (int evaluations = 1; evaluations < 30; ++evaluations) {
    const Minimum found = minimise(rosenbrock, {-1.2, 1}, evaluations);
    Vector g(2);
    EXPECT_EQ(found.weights, found.path.back()) << evaluations;
    EXPECT_LE(found.loss, rosenbrock(Vector{-1.2, 1}, g));
  }
}

// Wherever a run is cut, and whether or not it was settled there: the points are the same bits.
TEST(Lbfgs, GoesOnFromACheckpointWithTheSameBits) {
  for (const int history : {1, 3, 10}) {
    const Options options{.kind = Options::Kind::kLbfgs, .weight_decay = 1e-3, .history = history};
    const Vector from{-1.2, 1, -1, 2, 0.5, 0.3};
    constexpr int kEvaluations = 60;
    const Vector whole = minimise(rosenbrock, from, kEvaluations, options).weights;
    for (int cut = 1; cut < kEvaluations; ++cut) {
      for (const bool is_settled : {false, true}) {
        Lbfgs before(options), after(options);
        LocalSpace<double> space(from, Lbfgs::vectors(options));
        run(before, space, rosenbrock, cut);
        if (is_settled) throw_if_error(before.finish(space));
        throw_if_error(after.resume(before.numbers(), space));
        run(after, space, rosenbrock, kEvaluations - cut);
        throw_if_error(after.finish(space));
        EXPECT_EQ(space.weights(), whole) << "history " << history << ", cut " << cut;
        EXPECT_TRUE(after.has_converged() || !before.has_converged());
      }
    }
  }
}

TEST(Lbfgs, RefusesTheStateOfAnother) {
  const Options options{.kind = Options::Kind::kLbfgs, .weight_decay = 1e-3, .history = 3};
  Lbfgs method(options);
  LocalSpace<double> space({-1.2, 1}, Lbfgs::vectors(options));
  EXPECT_TRUE(method.numbers().empty()) << "nothing is known yet";
  run(method, space, rosenbrock, 9);
  const std::vector<double> numbers = method.numbers();
  for (const Options& other :
       {Options{.kind = Options::Kind::kLbfgs, .weight_decay = 1e-3, .history = 4},
        Options{.kind = Options::Kind::kLbfgs, .weight_decay = 0, .history = 3}}) {
    const Status refused = Lbfgs(other).resume(numbers, space);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.message(), testing::HasSubstr("optimizer.history=3"));
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{20}, numbers.size() - 1}) {
    EXPECT_EQ(Lbfgs(options).check(std::span(numbers).first(length)).code(), Code::kCorrupt);
  }
  for (const double pairs : {1e9, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<double> hostile = numbers;
    hostile[9] = pairs;
    EXPECT_EQ(Lbfgs(options).resume(hostile, space).code(), Code::kCorrupt);
  }
}

TEST(Lbfgs, AStepCostsTwoOrThreePrograms) {
  const Options options{.kind = Options::Kind::kLbfgs};
  const Logistic loss(60, 12, 1e-2);
  Lbfgs method(options);
  LocalSpace<double> space(Vector(12), Lbfgs::vectors(options));
  Vector g(12);
  for (int i = 0; i < 20; ++i) {
    const double f = loss(space.weights(), g);
    space.set_gradient(f, g);
    const int programs = space.programs, dots = space.dots();
    (void)method.next(1, space).take_or_throw();
    EXPECT_LE(space.programs - programs, 3);
    EXPECT_LE(space.dots() - dots, 3 + 6 * 10);
  }
}

TEST(Lbfgs, WorksWithFloat32) {
  const Options options{.kind = Options::Kind::kLbfgs};
  Lbfgs method(options);
  const Logistic loss(60, 12, 1e-2);
  LocalSpace<float> space(std::vector<float>(12), Lbfgs::vectors(options));
  Vector g(12);
  for (int i = 0; i < 40; ++i) {
    const double f = loss(Vector(space.weights().begin(), space.weights().end()), g);
    space.set_gradient(f, g);
    (void)method.next(1, space).take_or_throw();
  }
  throw_if_error(method.finish(space));
  const Minimum exact = minimise(loss, Vector(12), 100);
  EXPECT_LT(distance(Vector(space.weights().begin(), space.weights().end()), exact.weights), 1e-3);
}

TEST(Lbfgs, ALossThatIsNotFiniteIsTooHigh) {
  const Loss wall = [](const Vector& x, Vector& g) {
    g[0] = 2 * (x[0] - 1);
    return x[0] > 1.5 ? std::nan("") : (x[0] - 1) * (x[0] - 1);
  };
  const Minimum found = minimise(wall, {-40}, 60);
  EXPECT_NEAR(found.weights[0], 1, 1e-7);
}

// Over functions whose minimum along the line is near and far, on both sides of the first step.
TEST(LineSearch, AcceptsPointsThatSatisfyTheWolfeConditions) {
  for (const double minimum : {1e-3, 0.3, 1.0, 7.0, 900.0}) {
    for (const double first : {1e-2, 1.0, 50.0}) {
      const auto f = [&](double t) { return std::cosh((t - minimum) / minimum); };
      const auto slope = [&](double t) { return std::sinh((t - minimum) / minimum) / minimum; };
      LineSearch search({.loss = f(0), .slope = slope(0)}, first);
      auto outcome = LineSearch::Outcome::kGoOn;
      double t = 0;
      int evaluations = 0;
      for (; outcome == LineSearch::Outcome::kGoOn; ++evaluations) {
        t = search.next();
        outcome = search.evaluated(f(t), slope(t));
      }
      EXPECT_EQ(outcome, LineSearch::Outcome::kAccepted);
      EXPECT_LE(f(t), f(0) + 1e-4 * t * slope(0)) << minimum << " " << first;
      EXPECT_LE(std::abs(slope(t)), 0.9 * std::abs(slope(0))) << minimum << " " << first;
      EXPECT_LE(evaluations, 25);
    }
  }
}

TEST(LineSearch, FailsWhereNoStepIsLower) {
  LineSearch search({.loss = 1, .slope = -1}, 1);
  auto outcome = LineSearch::Outcome::kGoOn;
  for (int i = 0; i < 100 && outcome == LineSearch::Outcome::kGoOn; ++i) {
    outcome = search.evaluated(2, 1);
  }
  EXPECT_EQ(outcome, LineSearch::Outcome::kFailed);
}

TEST(VectorProgram, IsRefusedWhereVectorsAreMissing) {
  EXPECT_TRUE(fits({take_gradient(1), combine(2, {{1, 0}, {2, 1}}), dot(0, 2)}, 3));
  EXPECT_FALSE(fits({take_gradient(3)}, 3));
  EXPECT_FALSE(fits({take_gradient(kWeights)}, 3));
  EXPECT_FALSE(fits({combine(1, {{1, 3}})}, 3));
  EXPECT_FALSE(fits({combine(kWeights, {{1, 1}})}, 3));
  EXPECT_FALSE(fits({set_weights({{1, 7}})}, 3));
  EXPECT_FALSE(fits({{.kind = VectorStep::Kind::kDot, .terms = {{1, 1}}}}, 3));
}

TEST(VectorProgram, SumsMayBeWrittenOverOneOfTheirTerms) {
  std::vector<float> a(3000), b(3000);
  std::iota(a.begin(), a.end(), 0.0F);
  std::iota(b.begin(), b.end(), 1.0F);
  combine(DType::kFloat32, std::vector<VectorRange>{{2, a.data()}, {-1, b.data()}}, a.size(),
          a.data());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], static_cast<float>(i) - 1);
  EXPECT_EQ(dot(DType::kFloat32, b.data(), b.data(), 13), 13 * 14 * 27 / 6);
}

}  // namespace
}  // namespace stormo::optim
