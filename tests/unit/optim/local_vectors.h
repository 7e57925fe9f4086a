#pragma once

// A convex loss, and vectors in this process, for tests of methods over a VectorSpace.
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/optim/vector_program.h>

namespace stormo::optim {

using Vector = std::vector<double>;

inline double times(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
inline Vector sum_of(const Vector& a, double factor, const Vector& b) {
  Vector out = a;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += factor * b[i];
  return out;
}

/// Mean logistic loss of random samples, plus an L2 penalty.
class Logistic {
 public:
  Logistic(std::size_t samples, std::size_t features, double penalty) : penalty_(penalty) {
    Rng rng(7, "logistic");
    for (std::size_t s = 0; s < samples; ++s) {
      Vector x(features);
      for (double& v : x) v = 2 * rng.uniform() - 1;
      signs_.push_back(x[0] + 0.5 * x[1] + rng.uniform() - 0.5 > 0 ? 1 : -1);
      samples_.push_back(std::move(x));
    }
  }
  std::size_t samples() const { return samples_.size(); }
  double operator()(const Vector& w, Vector& g) const { return part(w, g, 0, samples()); }
  /// Of the samples [begin, end) only.
  double part(const Vector& w, Vector& g, std::size_t begin, std::size_t end) const {
    const auto count = static_cast<double>(end - begin);
    double loss = penalty_ / 2 * times(w, w);
    for (std::size_t i = 0; i < w.size(); ++i) g[i] = penalty_ * w[i];
    for (std::size_t s = begin; s < end; ++s) {
      const double margin = signs_[s] * times(w, samples_[s]);
      loss += std::log1p(std::exp(-margin)) / count;
      const double slope = -signs_[s] / (1 + std::exp(margin)) / count;
      for (std::size_t i = 0; i < w.size(); ++i) g[i] += slope * samples_[s][i];
    }
    return loss;
  }

 private:
  double penalty_;
  std::vector<Vector> samples_;
  Vector signs_;
};

/// Vectors of double or float in this process.
template <class T>
class LocalSpace final : public VectorSpace {
 public:
  LocalSpace(std::vector<T> weights, std::size_t vectors)
      : vectors_(vectors + 1, std::vector<T>(weights.size())) {
    vectors_[kWeights] = std::move(weights);
  }
  const std::vector<T>& weights() const { return vectors_[kWeights]; }
  void set_gradient(double loss, const Vector& g) {
    loss_ = loss;
    gradient_.assign(g.begin(), g.end());
  }
  int dots() const { return dots_; }

  Result<std::vector<double>> run(const VectorProgram& program) override {
    EXPECT_TRUE(fits(program, vectors_.size()));
    ++programs;
    std::vector<double> out;
    for (const VectorStep& step : program) {
      const DType type = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
      std::vector<VectorRange> terms;
      for (const VectorTerm& t : step.terms) {
        terms.push_back({.factor = t.factor, .data = vectors_[t.vector].data()});
      }
      const std::size_t n = weights().size();
      switch (step.kind) {
        case VectorStep::Kind::kGradient:
          vectors_[step.to] = gradient_;
          out.push_back(loss_);
          break;
        case VectorStep::Kind::kCombine: combine(type, terms, n, vectors_[step.to].data()); break;
        case VectorStep::Kind::kSetWeights:
          combine(type, terms, n, vectors_[kWeights].data());
          break;
        case VectorStep::Kind::kDot:
          ++dots_;
          out.push_back(dot(type, terms[0].data, terms[1].data, n));
          break;
        case VectorStep::Kind::kUpdate: ADD_FAILURE() << "L-BFGS has no rule for ranges";
      }
    }
    return out;
  }

  int programs = 0;

 private:
  std::vector<std::vector<T>> vectors_;
  std::vector<T> gradient_;
  double loss_ = 0;
  int dots_ = 0;
};

}  // namespace stormo::optim
