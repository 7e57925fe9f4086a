// How fast ranks come together.
//
// Idea: B = (product of the rounds' W) - 1/n has the eigenvalues of the product without that of the
// mean, and |B^k|^(1/k) goes to the largest of them. Squares of squares make k as large as it has
// to be, with complex eigenvalues, too. Cost: about 40 products of matrices.
#include <cmath>
#include <cstdint>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/plan/mixing/mixing.h>

namespace stormo::plan {
namespace {

constexpr int kSquares = 45;  // k is 2 to the power of this at most
constexpr double kNothing = 1e-14;
constexpr double kEnough = 1e-13;  // of the last square's relative change

/// Rows one after the other.
using Dense = std::vector<double>;

/// w * of.
Dense times(const MixingMatrix& w, const Dense& of) {
  const std::size_t n = w.size();
  Dense out(of.size());
  for (std::size_t i = 0; i < n; ++i) {
    for (const MixingTerm& t : w[i]) {
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += t.weight * of[at(t.from) * n + j];
    }
  }
  return out;
}

Dense square(const Dense& a, std::size_t n) {
  Dense out(a.size());
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      const double factor = a[i * n + k];
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += factor * a[k * n + j];
    }
  }
  return out;
}

double norm(const Dense& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

double contraction(const Mixing& mixing) {
  const auto n = at(mixing.ranks());
  Dense b(n * n);
  for (std::size_t i = 0; i < n; ++i) b[i * n + i] = 1;
  for (const MixingMatrix& w : mixing.rounds) b = times(w, b);
  for (double& x : b) x -= 1 / static_cast<double>(n);
  double log_of_scale = 0, power = 1, root = 0;
  for (int i = 0; i < kSquares; ++i) {
    const double size = norm(b);
    if (size < kNothing) return 0;
    log_of_scale += std::log(size);
    for (double& x : b) x /= size;
    const double before = root;
    root = std::exp(log_of_scale / power);
    if (std::abs(root - before) < kEnough * root) break;
    b = square(b, n);
    log_of_scale *= 2;
    power *= 2;
  }
  return std::pow(root, 1 / static_cast<double>(mixing.rounds.size()));
}

}  // namespace stormo::plan
