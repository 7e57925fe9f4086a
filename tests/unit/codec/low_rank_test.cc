// Sums of matrices as products of low rank, on one rank: what comes out, what is lost, and what
// happens to matrices that have no factors, or none that are sound.
#include <stormo/codec/low_rank.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/codec/coded.h"

namespace stormo::codec {
namespace {

/// What a sum of one rank keeps from one to the next.
struct Kept {
  explicit Kept(const LowRank& form)
      : lost(static_cast<std::size_t>(form.numbers())),
        right(static_cast<std::size_t>(form.right_numbers())) {}
  std::vector<float> lost, right;
};

/// The sum of this rank alone of `values` and of what was lost.
std::vector<float> sum(const LowRank& form, std::vector<float> values, Kept& kept,
                       std::uint64_t seed = 1) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += kept.lost[i];
  std::vector<float> left(static_cast<std::size_t>(form.left_numbers()));
  std::vector<float> own(kept.right.size());
  form.prepare_right(kept.right, seed);
  form.make_left(values, kept.right, left);
  form.orthonormalise_left(left);
  form.make_right(values, left, own);
  kept.right = own;
  form.deliver(left, own, kept.right, values, kept.lost);
  return values;
}

/// Of this rank, with singular values 1, 1/2, 1/4, ... of about one size of vectors.
std::vector<float> matrix(const MatrixShape& shape, int rank, double scale = 1,
                          std::uint64_t seed = 3) {
  std::vector<float> out(static_cast<std::size_t>(shape.numbers()));
  for (int k = 0; k < rank; ++k) {
    const auto a = random_values(static_cast<std::size_t>(shape.rows), 1, seed + 2 * k);
    const auto b = random_values(static_cast<std::size_t>(shape.columns), 1, seed + 2 * k + 1);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += static_cast<float>(std::ldexp(scale, -k) * a[i / b.size()] * b[i % b.size()]);
    }
  }
  return out;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double distance(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm(a);
}

TEST(LowRank, OnlyMatricesThatGetSmallerHaveFactors) {
  EXPECT_TRUE(has_factors({.rows = 512, .columns = 784}, 4));
  EXPECT_FALSE(has_factors({.rows = 512, .columns = 784}, 155));
  EXPECT_TRUE(has_factors({.rows = 512, .columns = 784}, 154));
  EXPECT_FALSE(has_factors({.rows = 1, .columns = 100'000}, 1));
  EXPECT_FALSE(has_factors({.rows = 10, .columns = 0}, 1));
  EXPECT_FALSE(has_factors({.rows = 8, .columns = 8}, 2));  // exactly half
  EXPECT_TRUE(has_factors({.rows = 8, .columns = 9}, 2));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(has_factors({.rows = 1, .columns = kMost}, std::numeric_limits<int>::max()));
}

TEST(LowRank, MessagesHaveTheFactorsAndWhatHasNone) {
  const LowRank form({{.columns = 7}, {.rows = 20, .columns = 33}, {.rows = 5, .columns = 3}}, 2);
  EXPECT_EQ(form.numbers(), 7 + 20 * 33 + 15);
  EXPECT_EQ(form.left_numbers(), 2 * 20 + 7 + 15);
  EXPECT_EQ(form.right_numbers(), 2 * 33);
}

TEST(LowRank, WhatHasNoFactorsComesOutAsItIs) {
  const LowRank form({{.columns = 7}, {.rows = 20, .columns = 33}, {.rows = 5, .columns = 3}}, 2);
  Kept kept(form);
  const std::vector<float> values = random_values(static_cast<std::size_t>(form.numbers()), 1);
  const std::vector<float> out = sum(form, values, kept);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 7, values.begin()));
  EXPECT_TRUE(std::equal(out.end() - 15, out.end(), values.end() - 15));
  EXPECT_NE(out, values);
  EXPECT_TRUE(
      std::all_of(kept.lost.begin(), kept.lost.begin() + 7, [](float v) { return v == 0; }));
}

// Also of less than that rank, of which the further columns are only rounding, and of any size.
TEST(LowRank, AMatrixOfItsRankComesOutWhole) {
  const MatrixShape shape{.rows = 37, .columns = 53};
  for (const int rank : {1, 3, 8}) {
    const LowRank form({shape}, rank);
    for (const int of : {1, rank}) {
      for (const double scale : {1e-25, 1.0, 1e15}) {
        const std::vector<float> values = matrix(shape, of, scale);
        Kept kept(form);
        for (int step = 0; step < 3; ++step) {
          EXPECT_LT(distance(sum(form, values, kept), values), 1e-5 * norm(values))
              << rank << ", " << of << ", " << scale;
        }
        EXPECT_LT(norm(kept.lost), 1e-5 * norm(values));
      }
    }
  }
}

TEST(LowRank, WhatIsDeliveredAndWhatIsLostAreWhatThereWas) {
  const MatrixShape shape{.rows = 29, .columns = 67};
  const LowRank form({shape}, 3);
  Kept kept(form);
  for (std::uint64_t step = 0; step < 10; ++step) {
    std::vector<float> before = random_values(static_cast<std::size_t>(shape.numbers()), 1, step);
    const std::vector<float> values = before;
    for (std::size_t i = 0; i < before.size(); ++i) before[i] += kept.lost[i];
    const std::vector<float> out = sum(form, values, kept, step);
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i] + kept.lost[i], before[i], 1e-5);
    }
    EXPECT_LT(norm(kept.lost), norm(before));
  }
}

// The right factors of one sum begin the next one: what is left is what no product of that rank
// has, to a percent.
TEST(LowRank, SumsOfOneMatrixComeNearTheBestProduct) {
  const MatrixShape shape{.rows = 60, .columns = 80};
  const std::vector<float> values = matrix(shape, 6);
  std::vector<double> left;
  for (const int rank : {1, 2, 4}) {
    const LowRank form({shape}, rank);
    Kept kept(form);
    std::vector<float> first, last;
    for (std::uint64_t step = 0; step < 30; ++step) {
      std::ranges::fill(kept.lost, 0.0f);
      last = sum(form, values, kept, step);
      if (step == 0) first = last;
    }
    EXPECT_LT(distance(last, values), 0.95 * distance(first, values)) << rank;
    left.push_back(distance(last, values) / norm(values));
  }
  // vectors that are drawn are nearly orthogonal, so singular values are halves of each other
  EXPECT_NEAR(left[0], std::sqrt(0.25), 0.1);
  EXPECT_NEAR(left[1], 0.25, 0.05);
  EXPECT_NEAR(left[2], 0.0625, 0.02);
}

// A column of zeros would stay zero.
TEST(LowRank, AfterZerosColumnsAreDrawnAgain) {
  const MatrixShape shape{.rows = 20, .columns = 30};
  const LowRank form({shape}, 2);
  const std::vector<float> zeros(static_cast<std::size_t>(shape.numbers()));
  Kept kept(form);
  EXPECT_EQ(sum(form, zeros, kept, 1), zeros);
  EXPECT_EQ(kept.lost, zeros);
  const std::vector<float> one = matrix(shape, 1), two = matrix(shape, 2);
  EXPECT_LT(distance(sum(form, one, kept, 2), one), 1e-5 * norm(one));
  std::ranges::fill(kept.lost, 0.0f);
  EXPECT_LT(distance(sum(form, two, kept, 3), two), 1e-5 * norm(two));
}

TEST(LowRank, WhatIsDrawnDependsOnTheSeedAlone) {
  const MatrixShape shape{.rows = 20, .columns = 30};
  const LowRank form({shape, shape}, 2);
  const auto drawn = [&](std::uint64_t seed) {
    Kept kept(form);
    form.prepare_right(kept.right, seed);
    return kept.right;
  };
  const std::vector<float> once = drawn(5);
  EXPECT_EQ(once, drawn(5));
  EXPECT_NE(once, drawn(6));
  EXPECT_NE(once, drawn(5 + (std::uint64_t{1} << 32)));
  for (std::size_t column = 30; column < once.size(); column += 30) {
    EXPECT_FALSE(std::equal(once.begin(), once.begin() + 30,
                            once.begin() + static_cast<std::ptrdiff_t>(column)));
  }
}

// It is seen in this matrix alone, and what was lost before is not.
TEST(LowRank, ANumberThatIsNotFiniteSpoilsItsMatrixOnce) {
  const MatrixShape shape{.rows = 20, .columns = 30};
  const LowRank form({shape, {.columns = 5}, shape}, 2);
  const auto all = static_cast<std::size_t>(form.numbers());
  const float inf = std::numeric_limits<float>::infinity();
  const auto finite = [](float v) { return std::isfinite(v); };
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    Kept kept(form);
    sum(form, random_values(all, 1, 1), kept, 1);
    const std::vector<float> lost = kept.lost;
    std::vector<float> values = random_values(all, 1, 2);
    values[17] = bad;
    const std::vector<float> out = sum(form, values, kept, 2);
    EXPECT_TRUE(std::none_of(out.begin(), out.begin() + 600, finite)) << bad;
    EXPECT_TRUE(std::all_of(out.begin() + 600, out.end(), finite)) << bad;
    EXPECT_TRUE(std::equal(lost.begin(), lost.begin() + 600, kept.lost.begin())) << bad;
    values = random_values(all, 1, 3);
    const std::vector<float> after = sum(form, values, kept, 3);
    for (std::size_t i = 0; i < 600; ++i) {
      ASSERT_NEAR(after[i] + kept.lost[i], values[i] + lost[i], 1e-5) << bad;
    }
  }
}

}  // namespace
}  // namespace stormo::codec
