// Chain broadcast.
//
// Idea: the data is cut into pieces that follow each other from rank to rank, so that all links
// work at once when there are many pieces. Cost: n-1 + pieces-1 rounds; every rank but the last
// sends K bytes. Paper: none; it is the pipeline that J. Watts, R. van de Geijn, "A pipelined
// broadcast for multidimensional meshes", Parallel Processing Letters 5(2), 1995, start from.
#include <gtest/gtest.h>
#include <stormo/analysis/cost.h>
#include <stormo/analysis/verify.h>
#include <stormo/plan/schedule.h>

#include <algorithm>

namespace stormo::schedule {
namespace {

plan::Schedule chain_broadcast(int ranks, int pieces) {
  plan::Schedule s{"chain_broadcast", {plan::GoalKind::kBroadcast, 0}, ranks, pieces, {}};
  for (int step = 0; ranks > 1 && step < ranks - 1 + pieces - 1; ++step) {
    plan::Round& round = s.rounds.emplace_back();
    for (Rank r = std::max(0, step - pieces + 1); r <= std::min(step, ranks - 2); ++r) {
      round.push_back({.from = r, .to = r + 1, .chunk = step - r, .how = plan::Combine::kCopy});
    }
  }
  return s;
}

TEST(ChainBroadcast, ReachesItsGoalForEverySize) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const int pieces : {1, 2, 3, 8}) {
      const Status st = analysis::verify(chain_broadcast(ranks, pieces));
      EXPECT_TRUE(st.ok()) << ranks << " ranks, " << pieces << " pieces: " << st.to_string();
    }
  }
}

TEST(ChainBroadcast, SendsTheBytesItPromises) {
  const analysis::Cost c = analysis::cost(chain_broadcast(5, 4), /*count=*/1000);
  EXPECT_EQ(c.rounds, 4 + 3);
  EXPECT_EQ(c.max_bytes_sent, 1000);
  EXPECT_EQ(c.total_bytes, 4 * 1000);
}

TEST(ChainBroadcast, AForgottenPieceIsNoticed) {
  plan::Schedule s = chain_broadcast(3, 2);
  s.rounds.back().pop_back();
  EXPECT_FALSE(analysis::verify(s).ok());
}

}  // namespace
}  // namespace stormo::schedule
