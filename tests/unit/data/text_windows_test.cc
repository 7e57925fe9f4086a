#include <stormo/data/text/text_windows.h>

#include <gmock/gmock.h>
#include <torch/types.h>

#include <numeric>
#include <set>

namespace stormo::data {
namespace {

using ::testing::HasSubstr;
using Shift = TextWindows::Shift;

/// The tokens 0, 1, 2, ...: a token's value is its place.
Tokens counting(std::int64_t n) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

Batch all_of(const TextWindows& windows, std::int64_t epoch) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(windows.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return windows.get(indices, epoch);
}

TEST(TextWindows, CoverTheTextOnceAndPredictTheNextToken) {
  for (const std::int64_t context : {1, 2, 7, 16}) {
    for (std::int64_t n = context + 1; n < 4 * context + 3; ++n) {
      const auto windows = TextWindows::create(counting(n), context, Shift::kNone, 1);
      ASSERT_TRUE(windows.ok()) << windows.status().to_string();
      EXPECT_EQ((*windows)->size(), (n - 1) / context);
      const Batch batch = all_of(**windows, 5);
      EXPECT_TRUE(batch.input.flatten().equal(torch::arange((*windows)->size() * context)));
      EXPECT_TRUE(batch.target.equal(batch.input + 1));
    }
  }
}

TEST(TextWindows, ShiftWithTheEpochAndStayInside) {
  constexpr std::int64_t kContext = 8;
  for (const std::int64_t n : {16, 17, 23, 24, 100}) {
    const auto windows = TextWindows::create(counting(n), kContext, Shift::kPerEpoch, 3);
    ASSERT_TRUE(windows.ok());
    EXPECT_EQ((*windows)->size(), (n - kContext) / kContext);
    std::set<std::int64_t> shifts;
    for (std::int64_t epoch = 0; epoch < 100; ++epoch) {
      const std::int64_t shift = (*windows)->shift_of(epoch);
      shifts.insert(shift);
      const Batch batch = all_of(**windows, epoch);
      EXPECT_TRUE(
          (batch.input.flatten() - shift).equal(torch::arange((*windows)->size() * kContext)));
      EXPECT_TRUE(batch.target.equal(batch.input + 1));
      EXPECT_LT(batch.target.max().item<std::int64_t>(), n);
    }
    EXPECT_EQ(shifts.size(), 8u);  // each of [0, 8) within 100 epochs
    EXPECT_EQ(*shifts.rbegin(), 7);
  }
}

TEST(TextWindows, ArePureInEpochAndSeed) {
  const auto make = [](std::uint64_t seed) {
    return *TextWindows::create(counting(2000), 32, Shift::kPerEpoch, seed);
  };
  const auto a = make(1), again = make(1), other = make(2);
  bool differ = false;
  for (const std::int64_t epoch : {9, 0, 4, 9}) {
    EXPECT_TRUE(all_of(*a, epoch).input.equal(all_of(*again, epoch).input));
    differ = differ || a->shift_of(epoch) != other->shift_of(epoch);
  }
  EXPECT_TRUE(differ);
  EXPECT_EQ(a->get({}, 0).input.sizes(), at::IntArrayRef({0, 32}));
}

TEST(TextWindows, RefuseATextThatIsTooShort) {
  const auto expect_refused = [](std::int64_t n, std::int64_t context, Shift shift) {
    const Status status = TextWindows::create(counting(n), context, shift, 1).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(n) + " tokens is too short"));
  };
  expect_refused(0, 4, Shift::kNone);
  expect_refused(4, 4, Shift::kNone);
  expect_refused(7, 4, Shift::kPerEpoch);
  EXPECT_TRUE(TextWindows::create(counting(5), 4, Shift::kNone, 1).ok());
  EXPECT_TRUE(TextWindows::create(counting(8), 4, Shift::kPerEpoch, 1).ok());
  EXPECT_FALSE(TextWindows::create(counting(8), 0, Shift::kNone, 1).ok());
}

TEST(SplitTokens, TakesNineTenthsForTraining) {
  for (const std::int64_t n : {0, 1, 9, 10, 11, 99, 1115394}) {
    const auto [train, validation] = split_tokens(counting(n));
    EXPECT_EQ(std::ssize(train), n * 9 / 10);
    EXPECT_EQ(std::ssize(train) + std::ssize(validation), n);
    if (n > 1) {
      EXPECT_EQ(validation.front(), train.back() + 1);
    }
  }
}

}  // namespace
}  // namespace stormo::data
