#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>

namespace stormo::analysis {

/// OK when `s` reaches its goal; else kBadPlan that names round, transfer and reason of the first
/// failure, chunk by chunk.
///
/// Follows, for every rank and chunk, the set of ranks whose terms its value holds, and the order
/// in which the value was built. Refused are:
/// - ranks, chunks, root or rounds out of range, a rank that sends to itself, a round without
///   transfers;
/// - sending a chunk that the rank does not have, or reducing into one;
/// - a reduction that would count a rank's term twice, even if it were overwritten later;
/// - hazards: a rank that in one round receives a chunk by copy and also sends it or receives it
///   again (split the round in two);
/// - an end in which some rank lacks what the goal promises;
/// - an all_reduce whose ranks end with sums built in different orders: they would differ in their
///   last bits.
///
/// What passes cannot deadlock under an executor that, round by round, hands all of a rank's
/// transfers to Transport::exchange at once in the order listed: within a round nothing sent
/// depends on anything received, and both ends of a pair of ranks list their messages in the same
/// order. It needs no buffer beyond the operands of reductions: where a rank reduces into a chunk
/// that it sends in the same round, they are what waits.
///
/// Time O(transfers * ranks / 64), memory O(ranks^2 / 64 + transfers).
Status verify(const plan::Schedule& s);

}  // namespace stormo::analysis
