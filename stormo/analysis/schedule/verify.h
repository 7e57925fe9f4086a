#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>

namespace stormo::analysis {

/// OK when `s` reaches its goal; else kBadPlan that names round, transfer and reason of the first
/// failure, chunk by chunk.
///
/// Tracks, for every rank and chunk, the set of ranks whose terms its value contains, and the order
/// in which the value was computed. Refused are:
/// - ranks, chunks, root or rounds out of range, a rank that sends to itself, a round without
///   transfers;
/// - sending a chunk that the rank does not have, or reducing into one;
/// - a reduction that would count a rank's term twice, even if it were overwritten later;
/// - conflicts: a rank that in one round receives a chunk by copy and also sends it or receives it
///   again (split the round in two);
/// - an end in which some rank lacks a result that the goal requires;
/// - an all_reduce whose ranks compute sums in different orders: their last bits would differ.
///
/// A verified schedule cannot deadlock with an executor that passes, round by round, all transfers
/// of a rank to one call of Transport::exchange in the order listed. Within a round nothing sent
/// depends on anything received, and both ranks of a pair have their messages in the same order.
/// The executor needs no memory except for operands of reductions that it must keep because the
/// rank also sends the chunk in the same round.
///
/// Time O(transfers * ranks / 64), memory O(ranks^2 / 64 + transfers).
Status verify(const plan::Schedule& s);

}  // namespace stormo::analysis
