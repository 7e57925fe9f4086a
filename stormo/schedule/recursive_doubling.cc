// Recursive doubling: all-reduce and all-gather.
//
// Idea: in step s ranks whose numbers differ in bit s swap all they have. In the all-reduce both
// add what they get to what they had, in the same round; in the all-gather they keep both. What a
// rank has stands for twice as many ranks after every step. Ranks beyond a power of two are folded
// into their neighbours. Cost: log2 n rounds, the least possible, and 2 more unless n is a power of
// two. All-reduce: log2 n times K bytes sent by each rank: good for small buffers. All-gather:
// (n-1)/n K received by each rank; a rank with a guest sends that much more. Paper: R. Thakur, R.
// Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
// High Performance Computing Applications 19(1), 2005, sections 4.1 and 4.5.
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/schedule/compose.h>
#include <stormo/schedule/fold.h>
#include <stormo/schedule/swap.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;

Rank across_bit(Rank rank, int step) { return rank ^ (1 << step); }

int log2_of(int power_of_two) { return std::countr_zero(static_cast<unsigned>(power_of_two)); }

}  // namespace

plan::Schedule recursive_doubling_all_reduce(int ranks) {
  const Fold fold(ranks);
  plan::Schedule core =
      without_rounds("recursive_doubling_all_reduce", {GoalKind::kAllReduce}, fold.core, 1);
  for (int step = 0; step < log2_of(fold.core); ++step) {
    plan::Round& round = core.rounds.emplace_back();
    for (Rank r = 0; r < fold.core; ++r) {
      round.push_back(
          {.from = r, .to = across_bit(r, step), .chunk = 0, .how = ReceiveOp::kReduce});
    }
  }
  return folded(core, ranks);
}

plan::Schedule recursive_doubling_all_gather(int ranks) {
  const Fold fold(ranks);
  plan::Schedule s =
      without_rounds("recursive_doubling_all_gather", {GoalKind::kAllGather}, ranks, ranks);
  Holdings held(static_cast<std::size_t>(ranks));
  for (int member = 0; member < fold.core; ++member) {
    const Rank r = fold.rank_of(member);
    auto& chunks = held[static_cast<std::size_t>(r)];
    chunks.push_back(r);
    if (member < fold.num_guests) chunks.push_back(r + 1);
  }
  plan::Round in, out;
  for (int i = 0; i < fold.num_guests; ++i) {
    const Rank host = 2 * i, guest = host + 1;
    in.push_back({.from = guest, .to = host, .chunk = guest, .how = ReceiveOp::kCopy});
    for (plan::ChunkId c = 0; c < ranks; ++c) {
      if (c != guest)
        out.push_back({.from = host, .to = guest, .chunk = c, .how = ReceiveOp::kCopy});
    }
  }
  s.rounds = swap_all(held, log2_of(fold.core), [&](Rank rank, int step) {
    const bool is_host = rank < 2 * fold.num_guests;
    if (is_host && rank % 2 != 0) return rank;  // a guest, which holds nothing to swap
    const int member = is_host ? rank / 2 : rank - fold.num_guests;
    return fold.rank_of(across_bit(member, step));
  });
  if (!in.empty()) s.rounds.insert(s.rounds.begin(), std::move(in));
  if (!out.empty()) s.rounds.push_back(std::move(out));
  return s;
}

}  // namespace stormo::schedule
