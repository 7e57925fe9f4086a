// Chain broadcast and chain scan.
//
// Idea: the data is cut into pieces that follow each other from rank to rank, so that all links
// work at once when there are many pieces. In the scan every rank adds its term to a piece before
// it passes it on. Cost: n-1 + pieces-1 rounds; every rank but the last sends K bytes, no more than
// it must. With many pieces the time of large buffers hardly grows with n. Paper: J. Watts, R. van
// de Geijn, "A pipelined broadcast for multidimensional meshes", Parallel Processing Letters 5(2),
// 1995.
#include <stormo/schedule/algorithms.h>

#include <algorithm>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

/// Pieces set out at `first` one after the other.
plan::Schedule along(plan::Schedule s, Rank first, plan::ReceiveOp how) {
  const int links = s.ranks - 1, pieces = s.chunks;
  for (int step = 0; links > 0 && step < links + pieces - 1; ++step) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = std::max(0, step - pieces + 1); i <= std::min(step, links - 1); ++i) {
      round.push_back({.from = (first + i) % s.ranks,
                       .to = (first + i + 1) % s.ranks,
                       .chunk = step - i,
                       .how = how});
    }
  }
  return s;
}

}  // namespace

plan::Schedule chain_broadcast(int ranks, Rank root, int pieces) {
  return along(without_rounds("chain_broadcast", {plan::GoalKind::kBroadcast, root}, ranks, pieces),
               root, plan::ReceiveOp::kCopy);
}

plan::Schedule chain_scan(int ranks, int pieces) {
  return along(without_rounds("chain_scan", {plan::GoalKind::kScan}, ranks, pieces), 0,
               plan::ReceiveOp::kReduce);
}

}  // namespace stormo::schedule
