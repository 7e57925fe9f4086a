#include <stormo/comm/sparse_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <stormo/comm/kernels/kernels.h>

namespace stormo::comm {
namespace {

/// A table's rows as they are worked on.
class RowTable {
 public:
  RowTable(DType dtype, std::int64_t width)
      : dtype_(dtype),
        width_(width),
        row_bytes_(static_cast<std::size_t>(width) * size_of(dtype)) {}

  std::size_t row_bytes() const { return row_bytes_; }

  /// Rows with equal indices are added, in the order in which they are given.
  Rows coalesce(std::span<const std::int64_t> indices, const std::byte* values) const {
    std::vector<std::size_t> order(indices.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return indices[a] < indices[b]; });
    Rows out;
    for (const std::size_t i : order) {
      const std::byte* row = values + i * row_bytes_;
      if (!out.indices.empty() && out.indices.back() == indices[i]) {
        add(out.values.data() + out.values.size() - row_bytes_, row);
      } else {
        out.indices.push_back(indices[i]);
        out.values.insert(out.values.end(), row, row + row_bytes_);
      }
    }
    return out;
  }

  Rows spread(const Rows& rows, std::int64_t num_rows) const {
    Rows table{.dense = true, .indices = {}, .values = {}};
    table.values.resize(static_cast<std::size_t>(num_rows) * row_bytes_);
    for (std::size_t i = 0; i < rows.indices.size(); ++i) {
      std::memcpy(table.values.data() + static_cast<std::size_t>(rows.indices[i]) * row_bytes_,
                  rows.values.data() + i * row_bytes_, row_bytes_);
    }
    return table;
  }

  void scale(Rows& rows, double factor) const {
    void* to = rows.values.data();
    const Operand all{to, factor};
    reduce(dtype_, Combine::kSum, {&all, 1}, {&to, 1},
           static_cast<std::int64_t>(rows.values.size() / size_of(dtype_)));
  }

  Buffer buffer(std::vector<std::byte>& bytes) const {
    return {bytes.data(), static_cast<std::int64_t>(bytes.size() / size_of(dtype_)), dtype_};
  }

 private:
  void add(std::byte* to, const std::byte* row) const {
    void* const destination = to;
    const Operand terms[] = {{to, 1}, {row, 1}};
    reduce(dtype_, Combine::kSum, terms, {&destination, 1}, width_);
  }

  const DType dtype_;
  const std::int64_t width_;
  const std::size_t row_bytes_;
};

Status check(std::span<const std::int64_t> indices, const Buffer& values, std::int64_t row_width,
             std::int64_t num_rows, ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kAverage) {
    return invalid_argument("all_reduce_rows: sum or average; an absent row is a row of zeros");
  }
  if (op == ReduceOp::kAverage && !is_floating(values.dtype)) {
    return invalid_argument("all_reduce_rows: average of integers");
  }
  if (row_width < 1 || values.count != row_width * static_cast<std::int64_t>(indices.size())) {
    return invalid_argument(fmt::format("all_reduce_rows: {} values are not {} rows of {}",
                                        values.count, indices.size(), row_width));
  }
  for (const std::int64_t i : indices) {
    if (i < 0 || i >= num_rows) {
      return invalid_argument(
          fmt::format("all_reduce_rows: there is no row {} in a table of {}", i, num_rows));
    }
  }
  return {};
}

Result<Rows> gather_rows(Communicator& world, const RowTable& table, Rows mine,
                         std::span<const std::int64_t> rows_of, std::int64_t row_width,
                         Deadline by) {
  const auto total =
      static_cast<std::size_t>(std::accumulate(rows_of.begin(), rows_of.end(), std::int64_t{0}));
  std::vector<std::int64_t> indices(total);
  std::vector<std::byte> values(total * table.row_bytes());
  std::vector<std::int64_t> counts(rows_of.begin(), rows_of.end());
  STORMO_RETURN_IF_ERROR(world.all_gather(mine.indices, indices, counts, by));
  for (std::int64_t& c : counts) c *= row_width;
  STORMO_RETURN_IF_ERROR(
      world.all_gather(table.buffer(mine.values), table.buffer(values), counts, by));
  return table.coalesce(indices, values.data());
}

}  // namespace

RowsCost rows_cost(int ranks, std::int64_t rows_of_all, std::int64_t num_rows,
                   std::size_t row_bytes) {
  const auto others = static_cast<std::uint64_t>(ranks - 1);
  return {.sparse_bytes =
              others * static_cast<std::uint64_t>(rows_of_all) * (sizeof(std::int64_t) + row_bytes),
          .dense_bytes = 2 * others * static_cast<std::uint64_t>(num_rows) * row_bytes};
}

Result<Rows> all_reduce_rows(Communicator& world, std::span<const std::int64_t> indices,
                             Buffer values, std::int64_t row_width, std::int64_t num_rows,
                             ReduceOp op, Deadline by) {
  STORMO_RETURN_IF_ERROR(check(indices, values, row_width, num_rows, op));
  const RowTable table(values.dtype, row_width);
  Rows sum = table.coalesce(indices, static_cast<const std::byte*>(values.data));
  auto own = static_cast<std::int64_t>(sum.indices.size());
  std::vector<std::int64_t> rows_of(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(std::span(&own, 1), rows_of, by));
  const std::int64_t all = std::accumulate(rows_of.begin(), rows_of.end(), std::int64_t{0});
  if (rows_cost(world.size(), all, num_rows, table.row_bytes()).dense_is_cheaper()) {
    sum = table.spread(sum, num_rows);
    STORMO_RETURN_IF_ERROR(world.all_reduce(table.buffer(sum.values), ReduceOp::kSum, by));
  } else {
    STORMO_ASSIGN_OR_RETURN(sum, gather_rows(world, table, std::move(sum), rows_of, row_width, by));
  }
  if (op == ReduceOp::kAverage) table.scale(sum, 1.0 / world.size());
  return sum;
}

}  // namespace stormo::comm
