// Star all-reduce.
//
// Idea: everyone sends all it has to rank 0, which reduces in ascending order of rank and sends the
// result back to everyone.
// Cost: 2 rounds whatever n, but rank 0 receives and sends (n-1) K bytes. Good for few ranks or
// tiny buffers; also the reference for a reduction order that is easy to state. Paper: none needed;
// it is the reduce and broadcast through a root that others are measured against.
#include <stormo/schedule/star.h>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>

namespace stormo::schedule {

plan::Schedule star_all_reduce(int ranks) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxRanks, "star: ranks out of range");
  plan::Schedule s{"star_all_reduce", {plan::GoalKind::kAllReduce}, ranks, 1, {}};
  if (ranks == 1) return s;
  plan::Round in, out;
  for (Rank r = 1; r < ranks; ++r) {
    in.push_back({.from = r, .to = 0, .chunk = 0, .how = plan::Combine::kReduce});
    out.push_back({.from = 0, .to = r, .chunk = 0, .how = plan::Combine::kCopy});
  }
  s.rounds = {std::move(in), std::move(out)};
  return s;
}

}  // namespace stormo::schedule
