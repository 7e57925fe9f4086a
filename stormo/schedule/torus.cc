// Two-dimensional torus all-reduce.
//
// Idea: ranks form a grid whose rows and columns are rings. A ring reduce-scatter along each row, a
// ring all-reduce along each column on what the rank has left, a ring all-gather along the rows:
// the hierarchical all-reduce with rings everywhere. Cost, for h rows of m: 2(m-1) + 2(h-1) rounds,
// about 4 sqrt(n) instead of the ring's 2n, and as few bytes, 2(n-1)/n K sent by each rank. Paper:
// H. Mikami, H. Suganuma, Y. Tanaka, Y. Kageyama, "Massively distributed SGD: ImageNet/ResNet- 50
// training in a flash", arXiv 1811.05233, 2018.
#include <stormo/schedule/algorithms.h>

#include <utility>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

/// `flat` run by each row at once on the whole buffer, its chunks cut into `width`.
plan::Schedule along_rows(const plan::Schedule& flat, int rows, int width) {
  const int columns = flat.ranks;
  std::vector<plan::Schedule> parts;
  for (int row = 0; row < rows; ++row) {
    std::vector<Rank> group;
    for (int column = 0; column < columns; ++column) group.push_back(row * columns + column);
    parts.push_back(on_group(flat, group, rows * columns,
                             {.offset = 0, .width = width, .chunks = width * flat.chunks}));
  }
  return side_by_side(parts);
}

/// `flat` run by each column at once on its own slice.
plan::Schedule along_columns(const plan::Schedule& flat, int columns) {
  const int rows = flat.ranks;
  std::vector<plan::Schedule> parts;
  for (int column = 0; column < columns; ++column) {
    std::vector<Rank> group;
    for (int row = 0; row < rows; ++row) group.push_back(row * columns + column);
    parts.push_back(
        on_group(flat, group, rows * columns,
                 {.offset = column * flat.chunks, .width = 1, .chunks = flat.chunks * columns}));
  }
  return side_by_side(parts);
}

}  // namespace

plan::Schedule torus_all_reduce(int rows, int columns) {
  STORMO_CHECK(rows >= 1 && columns >= 1 && rows <= plan::kMaxRanks / columns,
               "torus: ranks out of range");
  plan::Schedule s = along_rows(ring_reduce_scatter(columns), rows, rows);
  s = then(std::move(s), along_columns(ring_all_reduce(rows), columns));
  s = then(std::move(s), along_rows(ring_all_gather(columns), rows, rows));
  return with_goal(std::move(s), "torus_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
