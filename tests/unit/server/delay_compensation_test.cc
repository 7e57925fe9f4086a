// Delay compensation: Zheng et al., "Asynchronous stochastic gradient descent with delay
// compensation", ICML 2017.

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {
namespace {

using protocol::Compensation;
using protocol::PolicyOptions;
using Vector = std::vector<double>;

PolicyOptions compensated(Compensation how, double lambda, double decay = 0.95) {
  return {.compensation = how, .lambda = lambda, .lambda_decay = decay};
}

/// A shard of one piece of float64, and its workers.
class Servers {
 public:
  Servers(int workers, std::int64_t elements, const PolicyOptions& policy,
          const optim::Options& optimizer = {})
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 22).take_or_throw()),
        size_(static_cast<std::size_t>(elements)) {
    const std::vector<ShardPiece> pieces = {{.end = elements, .dtype = DType::kFloat64}};
    for (int w = 0; w < workers; ++w) {
      workers_.push_back(std::make_unique<SharedShard>(
          pieces,
          ShardOptions{.workers = workers,
                       .optimizer = optimizer,
                       .policy = protocol::make_policy(policy, workers).take_or_throw()},
          w, ShardWait{.policy = transport::wait_policy(1, 1)}));
    }
    EXPECT_LE(of(0).bytes(), memory_.size());
    of(0).create(memory_.data());
    for (const auto& w : workers_) w->attach(memory_.data());
  }

  SharedShard& of(int worker) { return *workers_[static_cast<std::size_t>(worker)]; }
  Vector read(int worker) { return vector_of(of(worker).read().take_or_throw().pieces[0]); }
  /// Without a read: what workers have read stays what it is.
  Vector now() { return vector_of(of(0).values(0).weights); }
  std::uint64_t push(int worker, const Vector& gradient, double lr) {
    const PushedPiece pieces[] = {{.array = gradient.data()}};
    return of(worker)
        .push({.pieces = pieces,
               .lr = lr,
               .sequence = of(worker).current_state().worker(worker).pushes})
        .take_or_throw()
        .decision.staleness;
  }

 private:
  Vector vector_of(const std::byte* from) const {
    Vector out(size_);
    std::memcpy(out.data(), from, size_ * sizeof(double));
    return out;
  }
  transport::MemoryFile memory_;
  std::size_t size_;
  std::vector<std::unique_ptr<SharedShard>> workers_;
};

double distance(const Vector& a, const Vector& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

/// Logistic regression on samples of a model with random weights.
class Regression {
 public:
  static constexpr std::size_t kFeatures = 10, kBatch = 32;
  Regression() : rng_(1, "regression") {
    for (double& w : truth_) w = normal();
  }
  void next_batch() {
    for (std::size_t s = 0; s < kBatch; ++s) {
      for (double& x : x_[s]) x = normal();
      y_[s] = rng_.uniform() < probability(truth_, s) ? 1 : 0;
    }
  }
  /// Of the mean loss of the batch.
  Vector gradient(const Vector& w) const {
    Vector out(kFeatures);
    for (std::size_t s = 0; s < kBatch; ++s) {
      const double error = (probability(w, s) - y_[s]) / kBatch;
      for (std::size_t i = 0; i < kFeatures; ++i) out[i] += error * x_[s][i];
    }
    return out;
  }

 private:
  double normal() {
    return std::sqrt(-2 * std::log(1 - rng_.uniform())) * std::cos(2 * M_PI * rng_.uniform());
  }
  double probability(const Vector& w, std::size_t s) const {
    double sum = 0;
    for (std::size_t i = 0; i < kFeatures; ++i) sum += w[i] * x_[s][i];
    return 1 / (1 + std::exp(-sum));
  }
  Rng rng_;
  Vector truth_ = Vector(kFeatures);
  std::array<std::array<double, kFeatures>, kBatch> x_{};
  std::array<double, kBatch> y_{};
};

struct Approximation {
  double distance = 0;  ///< mean, of the compensated gradients from those of the present weights
  double stale_distance = 0;  ///< the same of the gradients as they are pushed
  double nearer = 0;          ///< in which part of the steps the first is the smaller one
};

/// 400 steps of delay 8: nine workers take turns.
Approximation approximation(const PolicyOptions& policy) {
  constexpr int kWorkers = 9, kSteps = 400;
  constexpr double kRate = 0.1;
  Servers servers(kWorkers, Regression::kFeatures, policy);
  Regression problem;
  std::vector<Vector> seen;
  for (int w = 0; w < kWorkers; ++w) seen.push_back(servers.read(w));
  Approximation out;
  for (int step = 0; step < kSteps + kWorkers; ++step) {
    const int worker = step % kWorkers;
    Vector& mine = seen[static_cast<std::size_t>(worker)];
    problem.next_batch();
    const Vector before = servers.now(), stale = problem.gradient(mine);
    const Vector present = problem.gradient(before);
    const std::uint64_t staleness = servers.push(worker, stale, kRate);
    Vector used = servers.now();
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = (before[i] - used[i]) / kRate;
    mine = servers.read(worker);
    if (step < kWorkers) continue;
    EXPECT_EQ(staleness, 8u);
    const double is = distance(used, present), was = distance(stale, present);
    out.distance += is / kSteps;
    out.stale_distance += was / kSteps;
    out.nearer += is < was ? 1.0 / kSteps : 0;
  }
  return out;
}

class Approximates : public testing::TestWithParam<Compensation> {};
INSTANTIATE_TEST_SUITE_P(Both, Approximates,
                         testing::Values(Compensation::kDelay, Compensation::kAdaptiveDelay));

// The lambda with the smallest mean distance counts.
TEST_P(Approximates, ThePresentGradient) {
  Approximation best{.distance = 1e9};
  for (const double lambda : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
    const Approximation with = approximation(compensated(GetParam(), lambda));
    if (with.distance < best.distance) best = with;
  }
  EXPECT_GE(best.nearer, 0.8);
  EXPECT_LT(best.distance, 0.9 * best.stale_distance);
}

// By hand, two pushes of gradients 2 and 3, the second one stale by the first: m = 0.5 * 4 = 2,
// w = 1 - 0.1 * 2 = 0.8; m = 0.5 * 2 + 0.5 * 9 = 5.5, w = 0.8 - 0.1 (3 + 1.5 / sqrt(5.5 + 1e-7) *
// 9 * (0.8 - 1)).
TEST(AdaptiveDelay, IsTheRuleOfThePaper) {
  Servers servers(2, 1, compensated(Compensation::kAdaptiveDelay, 1.5, 0.5));
  double one = 1;
  PieceArrays first;
  first.weights = reinterpret_cast<std::byte*>(&one);
  throw_if_error(servers.of(0).set(0, first));
  (void)servers.read(0);
  (void)servers.read(1);
  EXPECT_EQ(servers.push(0, {2}, 0.1), 0u);
  EXPECT_NEAR(servers.now()[0], 0.8, 1e-12);
  EXPECT_EQ(servers.push(1, {3}, 0.1), 1u);
  EXPECT_NEAR(servers.now()[0], 0.8 - 0.1 * (3 - 1.5 / std::sqrt(5.5000001) * 9 * 0.2), 1e-12);
}

/// Weights after pushes of three workers in an order that makes gradients stale.
Vector trained(const PolicyOptions& policy) {
  constexpr int kElements = 20'000;  // three blocks, the last one incomplete
  Servers servers(3, kElements, policy, {.kind = optim::Options::Kind::kAdam});
  Rng rng(2, "gradients");
  Vector gradient(kElements);
  for (int w = 0; w < 3; ++w) (void)servers.read(w);
  for (const int worker : {0, 1, 1, 2, 0, 2, 1, 0, 2}) {
    for (double& g : gradient) g = rng.uniform() - 0.5;
    servers.push(worker, gradient, 0.01);
    (void)servers.read(worker);
  }
  return servers.now();
}

TEST(AdaptiveDelay, WithLambdaZeroIsAsync) {
  const Vector async = trained({});
  EXPECT_EQ(trained(compensated(Compensation::kAdaptiveDelay, 0)), async);
  EXPECT_NE(trained(compensated(Compensation::kAdaptiveDelay, 1)), async);
}

// A mean square that was kept beyond its version, or mixed between elements, would show here.
TEST(AdaptiveDelay, KeepsAMeanSquareOfEachElement) {
  constexpr std::size_t kElements = 20'000;
  Servers servers(2, kElements, compensated(Compensation::kAdaptiveDelay, 0.5, 0.75));
  Rng rng(3, "gradients");
  Vector mean_square(kElements), w(kElements), seen[2] = {w, w};
  for (int worker = 0; worker < 2; ++worker) (void)servers.read(worker);
  for (const std::size_t worker : {0, 1, 0, 0, 1, 1, 0}) {
    Vector gradient(kElements);
    for (double& g : gradient) g = rng.uniform() - 0.5;
    servers.push(static_cast<int>(worker), gradient, 0.1);
    for (std::size_t i = 0; i < kElements; ++i) {
      const double g = gradient[i];
      mean_square[i] = 0.75 * mean_square[i] + 0.25 * g * g;
      w[i] -= 0.1 * (g + 0.5 / std::sqrt(mean_square[i] + 1e-7) * g * g * (w[i] - seen[worker][i]));
    }
    seen[worker] = servers.read(static_cast<int>(worker));
    ASSERT_LT(distance(seen[worker], w), 1e-12);
  }
}

}  // namespace
}  // namespace stormo::server
