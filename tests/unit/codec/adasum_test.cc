// The arithmetic of Adasum: what two gradients become, and those of any number of ranks.
#include <stormo/codec/adasum.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "stormo/base/rng.h"
#include "tests/unit/codec/combined.h"

namespace stormo::codec {
namespace {

using Numbers = std::vector<float>;
using test::combined;

/// Of one gradient.
Numbers combined(const std::vector<Numbers>& of_ranks) {
  return combined({{.rows = 1, .columns = std::ssize(of_ranks.front())}}, of_ranks);
}

using Exact = std::vector<double>;

double product(const Exact& a, const Exact& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// By the formula of the paper, one gradient after the other, pair by pair.
Exact reference(std::vector<Exact> of_ranks) {
  while (of_ranks.size() > 1) {
    std::vector<Exact> next;
    for (std::size_t r = 0; r < of_ranks.size(); r += 2) {
      next.push_back(of_ranks[r]);
      if (r + 1 == of_ranks.size()) break;
      const Exact &a = of_ranks[r], &b = of_ranks[r + 1];
      const double both = product(a, b), own = product(a, a), other = product(b, b);
      for (std::size_t i = 0; i < a.size(); ++i) {
        next.back()[i] = (1 - both / (2 * own)) * a[i] + (1 - both / (2 * other)) * b[i];
      }
    }
    of_ranks = std::move(next);
  }
  return of_ranks.front();
}

TEST(Adasum, OrthogonalGradientsAddUp) {
  EXPECT_EQ(combined({{3, 0, 0, -1}, {0, 7, 0, 0}}), (Numbers{3, 7, 0, -1}));
  EXPECT_EQ(combined({{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 3, 0}, {0, 0, 0, 4}}),
            (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(combined({{1, 1}, {1, -1}}), (Numbers{2, 0}));
}

// To the bit, whatever the number of ranks.
TEST(Adasum, EqualGradientsAverage) {
  const Numbers one = {0.1f, -3.3f, 1e-6f, 0, 7e5f};
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    EXPECT_EQ(combined(std::vector<Numbers>(ranks, one)), one) << ranks;
  }
}

TEST(Adasum, SoDoParallelOnes) {
  EXPECT_EQ(combined({{1, 0}, {3, 0}}), (Numbers{2, 0}));
  EXPECT_EQ(combined({{2, 4}, {4, 8}}), (Numbers{3, 6}));
  EXPECT_EQ(combined({{2, 4}, {-2, -4}}), (Numbers{0, 0}));
}

// A rank without samples, and a parameter that it does not use.
TEST(Adasum, ZeroChangesNothing) {
  const Numbers zero = {0, 0, 0}, other = {1.5f, -2, 3};
  EXPECT_EQ(combined({zero, other}), other);
  EXPECT_EQ(combined({other, zero, zero}), other);
  EXPECT_EQ(combined({zero, zero}), zero);
}

// The first parameter is orthogonal, the second equal, the third has no numbers, and the fourth is
// none of these.
TEST(Adasum, EachParameterIsCombinedByItself) {
  const std::vector<MatrixShape> gradients = {
      {.columns = 2}, {.rows = 2, .columns = 1}, {.columns = 0}, {.columns = 1}};
  const Numbers out = combined(gradients, {{1, 0, 5, 6, 1}, {0, 1, 5, 6, 3}});
  EXPECT_EQ(out, (Numbers{1, 1, 5, 6, 2}));
}

// At sizes that ranks do not divide, where parameters begin inside of parts.
TEST(Adasum, IsTheFormulaOfThePaperOnAnyNumberOfRanks) {
  const std::vector<MatrixShape> gradients = {
      {.columns = 7}, {.rows = 19, .columns = 31}, {.columns = 1}, {.rows = 3, .columns = 41}};
  constexpr std::size_t kCount = 7 + 19 * 31 + 1 + 3 * 41;
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    std::vector<Numbers> of_ranks(ranks, Numbers(kCount));
    for (std::size_t r = 0; r < ranks; ++r) {
      Rng rng(r, "adasum_test");
      for (float& v : of_ranks[r]) v = static_cast<float>(rng.uniform() - 0.3);
    }
    const Numbers out = combined(gradients, of_ranks);
    std::size_t first = 0;
    for (const MatrixShape& g : gradients) {
      const auto size = static_cast<std::size_t>(g.numbers());
      std::vector<Exact> terms;
      for (const Numbers& own : of_ranks) {
        terms.emplace_back(own.begin() + static_cast<std::ptrdiff_t>(first),
                           own.begin() + static_cast<std::ptrdiff_t>(first + size));
      }
      const Exact wanted = reference(terms);
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_NEAR(out[first + i], wanted[i], 1e-5) << ranks << " ranks, " << first + i;
      }
      first += size;
    }
  }
}

TEST(Adasum, ANumberThatIsNotFiniteIsInItsParameterOnly) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<MatrixShape> gradients = {{.columns = 2}, {.columns = 3}, {.columns = 2}};
    const Numbers out = combined(
        gradients, {{1, 2, 3, 4, 5, 6, 7}, {1, 2, 0, bad, 0, 6, 7}, {1, 2, 3, 4, 5, 6, 7}});
    EXPECT_EQ((Numbers{out[0], out[1], out[5], out[6]}), (Numbers{1, 2, 6, 7}));
    for (std::size_t i = 2; i < 5; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
  }
}

TEST(Adasum, HasAPairLessThanRanks) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    const Adasum form({{.columns = 5}, {.columns = 2}}, ranks);
    std::int64_t products = 0;
    for (int level = 0; level < form.levels(); ++level) products += form.num_products(level);
    EXPECT_EQ(products, 3 * 2 * (ranks - 1)) << ranks;
    EXPECT_EQ(form.levels(), static_cast<int>(std::ceil(std::log2(ranks)))) << ranks;
  }
}

}  // namespace
}  // namespace stormo::codec
