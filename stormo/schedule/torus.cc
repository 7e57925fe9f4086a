// Two-dimensional torus all-reduce.
//
// Idea: ranks form a grid whose rows and columns are rings. A ring reduce-scatter along each row, a
// ring all-reduce along each column on what the rank has left, a ring all-gather along the rows:
// the hierarchical all-reduce with rings everywhere. Cost, for h rows of m: 2(m-1) + 2(h-1) rounds,
// about 4 sqrt(n) instead of the ring's 2n, and as few bytes, 2(n-1)/n K sent by each rank. Paper:
// H. Mikami, H. Suganuma, Y. Tanaka, Y. Kageyama, "Massively distributed SGD: ImageNet/ResNet- 50
// training in a flash", arXiv 1811.05233, 2018.
#include <stormo/schedule/torus.h>

#include <stormo/schedule/compose.h>
#include <stormo/schedule/hierarchical.h>
#include <stormo/schedule/ring.h>

namespace stormo::schedule {

plan::Schedule torus_all_reduce(int rows, int columns) {
  return with_goal(
      hierarchical(ring_reduce_scatter(columns), ring_all_reduce(rows), ring_all_gather(columns)),
      "torus_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
