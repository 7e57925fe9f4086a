#include <numeric>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/checkpoint/format/box.h>
#include <stormo/checkpoint/format/piece.h>

namespace stormo::checkpoint {
namespace {

/// The flat indices of a box, one by one: the oracle of everything here.
std::vector<std::int64_t> elements_of(const Box& box, Shape shape) {
  std::vector<std::int64_t> out;
  std::vector<std::int64_t> at(shape.size(), 0);
  for (std::int64_t left = *num_elements(box.sizes); left > 0; --left) {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + box.offsets[d] + at[d];
    out.push_back(flat);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.sizes[d]) break;
      at[d] = 0;
    }
  }
  return out;
}

std::vector<std::int64_t> random_shape(Rng& rng) {
  std::vector<std::int64_t> shape(rng.below(5));
  for (std::int64_t& size : shape) size = 1 + static_cast<std::int64_t>(rng.below(6));
  return shape;
}

TEST(Box, ARangeIsCutIntoFewBoxesThatHoldItInOrder) {
  Rng rng(1, "ranges");
  for (int i = 0; i < 2000; ++i) {
    const auto shape = random_shape(rng);
    const std::int64_t n = *num_elements(shape);
    const auto begin = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n) + 1));
    const auto end =
        begin + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n - begin) + 1));
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(end - begin)), got;
    std::iota(wanted.begin(), wanted.end(), begin);
    const auto boxes = boxes_of_range(shape, begin, end);
    for (const Box& box : boxes) {
      ASSERT_TRUE(is_inside(box, shape));
      const auto elements = elements_of(box, shape);
      got.insert(got.end(), elements.begin(), elements.end());
    }
    ASSERT_EQ(got, wanted);
    ASSERT_LE(boxes.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
  }
}

TEST(Box, AWholeTensorIsOneBoxAndAnEmptyOneToo) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{}, {5}, {3, 4}, {1, 1, 1}, {0}, {3, 0, 2}}) {
    const auto boxes = boxes_of_range(shape, 0, *num_elements(shape));
    ASSERT_EQ(boxes.size(), 1u);
    EXPECT_EQ(boxes[0].sizes, shape);
    EXPECT_TRUE(cover_exactly(boxes, shape));
  }
}

TEST(Box, RunsAreTheElementsOfTheBoxInTheRange) {
  Rng rng(2, "runs");
  for (int i = 0; i < 2000; ++i) {
    const auto shape = random_shape(rng);
    Box box;
    for (const std::int64_t size : shape) {
      box.offsets.push_back(static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(size))));
      box.sizes.push_back(static_cast<std::int64_t>(
          rng.below(static_cast<std::uint64_t>(size - box.offsets.back()) + 1)));
    }
    const auto n = static_cast<std::uint64_t>(*num_elements(shape));
    const auto begin = static_cast<std::int64_t>(rng.below(n + 1));
    const auto end =
        begin + static_cast<std::int64_t>(rng.below(n - static_cast<std::uint64_t>(begin) + 1));
    const auto inside = elements_of(box, shape);
    std::vector<std::pair<std::int64_t, std::int64_t>> wanted, got;  // in tensor, in box
    for (std::size_t k = 0; k < inside.size(); ++k) {
      if (inside[k] >= begin && inside[k] < end)
        wanted.emplace_back(inside[k], static_cast<std::int64_t>(k));
    }
    for_runs(box, shape, begin, end, [&](const checkpoint::Run& run) {
      for (std::int64_t k = 0; k < run.count; ++k)
        got.emplace_back(run.in_tensor + k, run.in_box + k);
    });
    ASSERT_EQ(got, wanted);
  }
}

TEST(Box, CoverageIsExact) {
  const std::vector<std::int64_t> shape = {4, 6};
  const Box left{{0, 0}, {4, 3}}, right{{0, 3}, {4, 3}}, top{{0, 0}, {2, 6}},
      bottom{{2, 0}, {2, 6}};
  EXPECT_TRUE(cover_exactly({left, right}, shape));
  EXPECT_TRUE(cover_exactly({bottom, top}, shape));
  EXPECT_FALSE(cover_exactly({left}, shape));
  EXPECT_FALSE(cover_exactly({left, left}, shape));
  EXPECT_FALSE(cover_exactly({left, top}, shape));
  EXPECT_FALSE(cover_exactly({top, top}, shape));
  EXPECT_FALSE(cover_exactly({top, bottom, left}, shape));
  EXPECT_FALSE(cover_exactly({}, shape));
  EXPECT_FALSE(cover_exactly({}, std::vector<std::int64_t>{0}));
}

TEST(Box, SizesThatOverflowAreNoSizes) {
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_FALSE(num_elements(std::vector{big, big}));
  EXPECT_FALSE(num_elements(std::vector<std::int64_t>{0, big, big}));
  EXPECT_FALSE(num_elements(std::vector<std::int64_t>{-1}));
  EXPECT_EQ(num_elements(std::vector<std::int64_t>{0, big}), 0);
  EXPECT_FALSE(is_inside({{1}, {INT64_MAX}}, std::vector<std::int64_t>{5}));
  EXPECT_FALSE(is_inside({{0, 0}, {1, 1}}, std::vector<std::int64_t>{5}));
}

TEST(Piece, SharesCoverEverythingOnceAndEvenly) {
  Rng rng(3, "shares");
  const std::string values(100000, 'x');
  for (int i = 0; i < 300; ++i) {
    std::vector<Piece> pieces;
    std::size_t total = 0;
    for (std::uint64_t k = rng.below(6); k > 0; --k) {
      const auto n = static_cast<std::int64_t>(rng.below(1000));
      const char* dtypes[] = {"F32", "F64", "U8"};
      pieces.push_back(
          {"t" + std::to_string(k), dtypes[rng.below(3)], {n}, 0, n, values.data(), {}});
      total += bytes_of(pieces.back());
    }
    const int ranks = 1 + static_cast<int>(rng.below(5));
    std::map<std::string, std::int64_t> next;
    for (int r = 0; r < ranks; ++r) {
      std::size_t mine = 0;
      for (const Piece& p : share_of(pieces, r, ranks)) {
        EXPECT_EQ(p.begin, next[p.name]);
        EXPECT_EQ(
            static_cast<const char*>(p.data) - values.data(),
            static_cast<std::ptrdiff_t>(
                bytes_of(p) / std::max<std::size_t>(1, static_cast<std::size_t>(p.end - p.begin))) *
                p.begin);
        next[p.name] = p.end;
        mine += bytes_of(p);
      }
      EXPECT_LE(mine, total / static_cast<std::size_t>(ranks) + 16);
    }
    for (const Piece& p : pieces) EXPECT_EQ(next[p.name], p.end);
    EXPECT_EQ(next.size(), pieces.size());
  }
}

}  // namespace
}  // namespace stormo::checkpoint
