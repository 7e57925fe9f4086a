// Brent-Kung scan.
//
// Idea: with ranks counted from 1, on the way up every multiple of 2d adds the sum that ends d
// ranks before it, for d = 1, 2, 4, ...: it then has the sum of the last 2d ranks. On the way down,
// for d falling, every multiple of 2d, whose prefix is complete, adds it to the rank d after it.
// Cost: about 2 log2 n rounds and fewer than 2n transfers in all; a rank sends at most floor(log2
// n) times K bytes. Works in place: a rank never needs its own term again. Paper: R. P. Brent, H.
// T. Kung, "A regular layout for parallel adders", IEEE Transactions on Computers C-31(3), 1982.
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule brent_kung_scan(int ranks) {
  plan::Schedule s = without_rounds("brent_kung_scan", {plan::GoalKind::kScan}, ranks, 1);
  const auto add = [&](plan::Round& round, int from, int to) {
    round.push_back({from - 1, to - 1, 0, plan::ReceiveOp::kReduce});
  };
  for (int d = 1; 2 * d <= ranks; d *= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = 2 * d; i <= ranks; i += 2 * d) add(round, i - d, i);
  }
  for (auto d = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))); d >= 1; d /= 2) {
    if (3 * d > ranks) continue;
    plan::Round& round = s.rounds.emplace_back();
    for (int i = 2 * d; i + d <= ranks; i += 2 * d) add(round, i, i + d);
  }
  return s;
}

}  // namespace stormo::schedule
