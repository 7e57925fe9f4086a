#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// Some rows of a table, in ascending order without repetition, or all of them.
struct Rows {
  bool dense = false;                 ///< `values` is the whole table, `indices` is empty
  std::vector<std::int64_t> indices;  ///< of rows
  std::vector<std::byte> values;      ///< row by row, of the dtype that was given
};

/// Bytes that an exchange of rows would send, over all ranks.
struct RowsCost {
  std::uint64_t sparse_bytes = 0;  ///< (n-1) * rows of all ranks * (8 + bytes of a row)
  std::uint64_t dense_bytes = 0;   ///< 2 (n-1) * bytes of the table, a ring all-reduce
  bool dense_is_cheaper() const { return dense_bytes < sparse_bytes; }
};
RowsCost rows_cost(int ranks, std::int64_t rows_of_all, std::int64_t num_rows,
                   std::size_t row_bytes);

/// A collective; blocks. Sum of one sparse table per rank (kAverage: divided by the number of
/// ranks). A table has num_rows rows of row_width elements. A rank gives only some rows: `indices`,
/// which may contain repetitions, and `values`, indices.size() * row_width elements, row by row.
/// The rows of all ranks are gathered and added in the order of ranks. If this would send more than
/// a dense all-reduce, the tables are added densely instead; all ranks make the same choice. Every
/// rank gets the same bits.
Result<Rows> all_reduce_rows(Communicator& world, std::span<const std::int64_t> indices,
                             Buffer values, std::int64_t row_width, std::int64_t num_rows,
                             ReduceOp op, Deadline by = Deadline::never());

}  // namespace stormo::comm
