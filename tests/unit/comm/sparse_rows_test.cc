// Sums of sparse tables against the dense sum, and the switch between the two ways.
#include <stormo/comm/sparse_rows.h>

#include <cmath>

#include "stormo/base/rng.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr std::int64_t kWidth = 5;

struct Table {
  std::vector<std::int64_t> indices;
  std::vector<float> values;
};

Table random_rows(int rank, int rows, std::int64_t num_rows) {
  Rng rng(static_cast<std::uint64_t>(rank) + 3, "sparse_rows_test");
  Table t;
  for (int i = 0; i < rows; ++i) {
    t.indices.push_back(static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(num_rows))));
    for (int e = 0; e < kWidth; ++e) t.values.push_back(static_cast<float>(rng.uniform()));
  }
  return t;
}

std::vector<double> dense_sum(int ranks, const std::function<int(int)>& rows,
                              std::int64_t num_rows) {
  std::vector<double> sum(static_cast<std::size_t>(num_rows * kWidth));
  for (int r = 0; r < ranks; ++r) {
    const Table t = random_rows(r, rows(r), num_rows);
    for (std::size_t i = 0; i < t.values.size(); ++i) {
      const auto row = static_cast<std::size_t>(t.indices[i / kWidth]);
      sum[row * kWidth + i % kWidth] += static_cast<double>(t.values[i]);
    }
  }
  return sum;
}

std::vector<float> as_table(const Rows& rows, std::int64_t num_rows) {
  std::vector<float> out(static_cast<std::size_t>(num_rows * kWidth));
  const auto* values = reinterpret_cast<const float*>(rows.values.data());
  if (rows.dense) return {values, values + out.size()};
  for (std::size_t i = 0; i < rows.indices.size(); ++i) {
    EXPECT_TRUE(i == 0 || rows.indices[i] > rows.indices[i - 1]) << "ascending, no repetition";
    std::copy_n(values + i * kWidth, kWidth, out.begin() + rows.indices[i] * kWidth);
  }
  return out;
}

TEST(SparseRows, EqualTheDenseSumAndSwitchWhenDenseIsCheaper) {
  const std::vector<std::vector<int>> placements = {{1}, {3}, {1, 1}, {2, 1}};
  for (const auto& hosts : placements) {
    on_hosts(hosts, [](Communicator& c) {
      for (const std::int64_t num_rows : {20, 4000}) {
        const auto rows = [](int rank) { return rank % 2 == 1 ? 0 : 40 + rank; };
        Table mine = random_rows(c.rank(), rows(c.rank()), num_rows);
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          const auto sum = all_reduce_rows(c, mine.indices, mine.values, kWidth, num_rows, op);
          ASSERT_TRUE(sum.ok()) << sum.status().to_string();
          EXPECT_EQ(sum->dense, num_rows == 20 && c.size() == 3) << "two ranks with rows";
          const auto want = dense_sum(c.size(), rows, num_rows);
          const auto got = as_table(*sum, num_rows);
          const double divisor = op == ReduceOp::kAverage ? c.size() : 1;
          for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(static_cast<double>(got[i]), want[i] / divisor, 1e-6 * (1 + want[i]));
          }
        }
      }
    });
  }
}

TEST(SparseRows, TheSwitchIsWhereTheBytesAreEqual) {
  // 4 ranks, 100 rows of 12 bytes: dense 2 * 3 * 1200, sparse 3 * rows * 20
  EXPECT_FALSE(rows_cost(4, 120, 100, 12).dense_is_cheaper());
  EXPECT_TRUE(rows_cost(4, 121, 100, 12).dense_is_cheaper());
}

TEST(SparseRows, BadArgumentsAreRefused) {
  on_ranks(1, [](Communicator& c) {
    std::vector<float> values(10);
    const Buffer b = values;
    const auto code = [&](std::vector<std::int64_t> indices, ReduceOp op) {
      return all_reduce_rows(c, indices, b, kWidth, 7, op).status().code();
    };
    EXPECT_EQ(code({0, 7}, ReduceOp::kSum), Code::kInvalidArgument);
    EXPECT_EQ(code({0}, ReduceOp::kSum), Code::kInvalidArgument);
    EXPECT_EQ(code({0, 1}, ReduceOp::kMax), Code::kInvalidArgument);
    EXPECT_EQ(code({0, 1}, ReduceOp::kSum), Code::kOk);
  });
}

}  // namespace
}  // namespace stormo::comm
