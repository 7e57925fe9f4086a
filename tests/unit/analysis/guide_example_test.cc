// Chain reduce.
//
// Idea: the data is cut into pieces that follow each other from rank to rank towards rank 0, and
// grow by every rank's term, so that all links work at once when there are many pieces. Cost: n-1 +
// pieces-1 rounds; every rank but the first sends K bytes. Paper: J. Watts, R. van de Geijn, "A
// pipelined broadcast for multidimensional meshes", Parallel Processing Letters 5(2), 1995,
// backwards.
#include <gtest/gtest.h>
#include <stormo/analysis/cost.h>
#include <stormo/analysis/verify.h>
#include <stormo/plan/schedule.h>

#include <algorithm>

namespace stormo::schedule {
namespace {

plan::Schedule chain_reduce(int ranks, int pieces) {
  plan::Schedule s{"chain_reduce", {plan::GoalKind::kReduce, 0}, ranks, pieces, {}};
  for (int step = 0; ranks > 1 && step < ranks - 1 + pieces - 1; ++step) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = std::max(0, step - pieces + 1); i <= std::min(step, ranks - 2); ++i) {
      const Rank from = ranks - 1 - i;
      round.push_back({from, from - 1, step - i, plan::Combine::kReduce});
    }
  }
  return s;
}

TEST(ChainReduce, ReachesItsGoalForEverySize) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const int pieces : {1, 2, 3, 8}) {
      const Status st = analysis::verify(chain_reduce(ranks, pieces));
      EXPECT_TRUE(st.ok()) << ranks << " ranks, " << pieces << " pieces: " << st.to_string();
    }
  }
}

TEST(ChainReduce, SendsTheBytesItPromises) {
  const analysis::Cost c = analysis::cost(chain_reduce(5, 4), /*count=*/1000);
  EXPECT_EQ(c.rounds, 4 + 3);
  EXPECT_EQ(c.max_bytes_sent, 1000);
  EXPECT_EQ(c.total_bytes, 4 * 1000);
}

TEST(ChainReduce, AForgottenPieceIsNoticed) {
  plan::Schedule s = chain_reduce(3, 2);
  s.rounds.back().pop_back();
  EXPECT_FALSE(analysis::verify(s).ok());
}

}  // namespace
}  // namespace stormo::schedule
