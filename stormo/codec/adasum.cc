#include <stormo/codec/adasum.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace stormo::codec {
namespace {

/// Of two gradients, or of what a part has of them.
struct Products {
  double both = 0, first = 0, second = 0;
};

/// Terms of several sums at once, so that the compiler uses vectors.
Products products_of(const float* a, const float* b, std::int64_t numbers) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> both{}, first{}, second{};
  const auto size = static_cast<std::size_t>(numbers);
  const auto add = [&](std::size_t lane, std::size_t i) {
    const double x = a[i], y = b[i];
    both[lane] += x * y;
    first[lane] += x * x;
    second[lane] += y * y;
  };
  std::size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (; i < size; ++i) add(0, i);
  Products out;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    out.both += both[lane];
    out.first += first[lane];
    out.second += second[lane];
  }
  return out;
}

/// Of a gradient with this scalar product with itself. The products of what is not finite are not
/// finite, or NaN, and so is the factor.
double factor_of(double both, double own) { return own == 0 ? 1 : 1 - both / (2 * own); }

}  // namespace

Adasum::Adasum(const std::vector<MatrixShape>& gradients, int ranks) : ranks_(ranks) {
  for (const MatrixShape& g : gradients) ends_.push_back(numbers() + g.numbers());
  part_numbers_ = (numbers() + ranks - 1) / ranks;
  while ((1 << levels_) < ranks) ++levels_;
}

std::int64_t Adasum::num_products(int level) const {
  const int distance = 1 << level;
  const int pairs = (ranks_ + distance - 1) / (2 * distance);
  return std::int64_t{3} * pairs * std::ssize(ends_);
}

/// Calls body(number of the pair and gradient, first of its numbers in the terms of the first rank
/// and of the second, how many).
template <class Body>
void Adasum::for_each_pair(int level, int part, const Body& body) const {
  const int distance = 1 << level;
  const std::int64_t begin = part * part_numbers_, end = begin + part_numbers_;
  std::int64_t number = 0;
  for (int rank = 0; rank + distance < ranks_; rank += 2 * distance) {
    std::int64_t first = 0;
    for (const std::int64_t last : ends_) {
      const std::int64_t from = std::clamp(first, begin, end), to = std::clamp(last, begin, end);
      const std::int64_t own = rank * part_numbers_ + from - begin;
      body(number++, own, own + distance * part_numbers_, to - from);
      first = last;
    }
  }
}

void Adasum::multiply(int level, int part, std::span<const float> terms,
                      std::span<double> products) const {
  for_each_pair(level, part,
                [&](std::int64_t pair, std::int64_t a, std::int64_t b, std::int64_t numbers) {
                  const Products p = products_of(terms.data() + a, terms.data() + b, numbers);
                  double* const to = products.data() + 3 * pair;
                  to[0] = p.both;
                  to[1] = p.first;
                  to[2] = p.second;
                });
}

void Adasum::combine(int level, int part, std::span<const double> products,
                     std::span<float> terms) const {
  for_each_pair(level, part,
                [&](std::int64_t pair, std::int64_t a, std::int64_t b, std::int64_t numbers) {
                  const double* const p = products.data() + 3 * pair;
                  const double first = factor_of(p[0], p[1]), second = factor_of(p[0], p[2]);
                  float* const to = terms.data() + a;
                  const float* const other = terms.data() + b;
                  for (std::int64_t i = 0; i < numbers; ++i) {
                    to[i] = static_cast<float>(first * to[i] + second * other[i]);
                  }
                });
}

}  // namespace stormo::codec
