// The example of docs/guides/add-a-topology.md.
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include <stormo/plan/mixing/mixing.h>

#include <gtest/gtest.h>

namespace stormo::plan {

/// Each rank meets the one before and the one behind it; the first and the last have one neighbour.
Result<Mixing> line(int ranks) {
  std::vector<std::pair<Rank, Rank>> edges;
  for (Rank r = 1; r < ranks; ++r) edges.emplace_back(r - 1, r);
  return metropolis(ranks, edges);
}

}  // namespace stormo::plan

namespace stormo::plan {
namespace {

// Weights are 1/3, but those of the ends with themselves: a path of n has the eigenvalues
// (1 + 2 cos(k pi / n)) / 3.
TEST(Line, ComesTogetherAsTheFormulaSays) {
  for (const int n : {2, 3, 8, 33}) {
    const Mixing mixing = line(n).take_or_throw();
    EXPECT_TRUE(check(mixing).ok()) << check(mixing).message();
    EXPECT_EQ(senders_to(mixing.at(0), 0), std::vector<Rank>{1});
    if (n == 2) continue;  // its two weights are 1/2
    EXPECT_NEAR(contraction(mixing), (1 + 2 * std::cos(std::numbers::pi / n)) / 3, 1e-10);
  }
}

}  // namespace
}  // namespace stormo::plan
