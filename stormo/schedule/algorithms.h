#pragma once

#include <stormo/plan/schedule.h>
#include <stormo/schedule/host_leaders.h>

namespace stormo::schedule {

// The algorithms, by the file that has their idea, cost and paper. For all of them
// 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks, pieces >= 1, and there are at most
// plan::kMaxChunks chunks. Where `ranks` chunks are gathered, chunk r starts at rank r; where they
// are scattered, or reduced and scattered, it ends there.

// all_to_all.cc: ranks * ranks chunks.
/// In one round.
plan::Schedule direct_all_to_all(int ranks);
/// In ranks - 1 rounds, in each of which every rank sends one chunk and receives one.
plan::Schedule pairwise_all_to_all(int ranks);

// binomial.cc: one chunk.
plan::Schedule binomial_broadcast(int ranks, Rank root);
plan::Schedule binomial_reduce(int ranks, Rank root);
/// binomial_reduce to rank 0, then binomial_broadcast.
plan::Schedule binomial_all_reduce(int ranks);

// binomial_scatter.cc: `ranks` chunks.
plan::Schedule binomial_scatter(int ranks, Rank root);
plan::Schedule binomial_gather(int ranks, Rank root);

// brent_kung.cc
/// One chunk; rank r ends with the reduction of ranks 0 to r.
plan::Schedule brent_kung_scan(int ranks);

// bruck.cc
/// `ranks` chunks.
plan::Schedule bruck_all_gather(int ranks);
/// ranks * ranks chunks, many of which pass through ranks that are neither their sender nor their
/// addressee.
plan::Schedule bruck_all_to_all(int ranks);

// chain.cc: `pieces` chunks.
/// From `root` to its right around to its left.
plan::Schedule chain_broadcast(int ranks, Rank root, int pieces = 1);
/// Rank r ends with the reduction of ranks 0 to r.
plan::Schedule chain_scan(int ranks, int pieces = 1);

// direct.cc: `ranks` chunks.
/// In one round rank r reduces chunk r of all peers, listed in ascending order of `from`.
plan::Schedule direct_reduce_scatter(int ranks);
/// In one round rank r sends chunk r to all peers.
plan::Schedule direct_all_gather(int ranks);
/// direct_reduce_scatter, then direct_all_gather.
plan::Schedule direct_all_reduce(int ranks);

// double_tree.cc
/// 2 * pieces chunks: the first half of them is reduced and broadcast over one tree, the second
/// over another. No rank is interior in both.
plan::Schedule double_tree_all_reduce(int ranks, int pieces = 1);

// fixed_tree.cc
/// `ranks` chunks. Every element is added up over the tree of plan/logical_shards.h.
plan::Schedule fixed_tree_all_reduce(int ranks);

// halving_doubling.cc
/// `ranks` chunks.
plan::Schedule recursive_halving_reduce_scatter(int ranks);
/// As many chunks as the largest power of two <= ranks.
plan::Schedule halving_doubling_all_reduce(int ranks);

// hierarchical.cc: among `hosts`, which may have different numbers of ranks. Between hosts their
// ranks share the work: see HostLeaders. w is the number of ranks of the widest host.
/// hosts * w chunks; in each host, chunks [i * hosts, (i + 1) * hosts) are carried by local rank i
/// modulo the number of the host's ranks. For a single host: w chunks.
plan::Schedule hierarchical_all_reduce(const HostSizes& hosts);
/// The same with one order of additions for all chunks: ranks in ascending order inside their host,
/// then hosts in ascending order. So the bits of a sum depend only on ranks and hosts, not on its
/// position in the buffer. Between hosts every leader receives from those of all other hosts in
/// one round.
plan::Schedule canonical_all_reduce(const HostSizes& hosts);
/// A chunk for each rank.
plan::Schedule hierarchical_all_gather(const HostSizes& hosts);
plan::Schedule hierarchical_reduce_scatter(const HostSizes& hosts);
/// In the order of additions of canonical_all_reduce.
plan::Schedule canonical_reduce_scatter(const HostSizes& hosts);
/// w * pieces chunks; the pieces follow one another from host to host.
plan::Schedule hierarchical_broadcast(const HostSizes& hosts, Rank root, int pieces = 1);
plan::Schedule hierarchical_reduce(const HostSizes& hosts, Rank root, int pieces = 1);

// leader.cc: one chunk, among `hosts`, which may have different numbers of ranks, through one rank
// of each.
/// The first rank of a host is its leader; leaders both send and reduce in the same round.
plan::Schedule leader_all_reduce(const HostSizes& hosts);
/// The root is the leader of its host.
plan::Schedule leader_broadcast(const HostSizes& hosts, Rank root);
plan::Schedule leader_reduce(const HostSizes& hosts, Rank root);

// one_shot.cc
/// One chunk, one round: every rank sends it to all others and reduces it from all others, listed
/// by receiver and then by sender.
plan::Schedule one_shot_all_reduce(int ranks);

// pat.cc: `ranks` chunks.
plan::Schedule pat_all_gather(int ranks);
plan::Schedule pat_reduce_scatter(int ranks);

// recursive_doubling.cc
/// One chunk. Ranks both send and reduce it in the same round.
plan::Schedule recursive_doubling_all_reduce(int ranks);
/// `ranks` chunks.
plan::Schedule recursive_doubling_all_gather(int ranks);

// ring.cc: each rank's chunk may be cut into `pieces` that follow one another in a round, so that
// one is reduced while the next arrives: ranks * pieces chunks.
plan::Schedule ring_reduce_scatter(int ranks, int pieces = 1);
plan::Schedule ring_all_gather(int ranks, int pieces = 1);
/// ring_reduce_scatter, then ring_all_gather.
plan::Schedule ring_all_reduce(int ranks, int pieces = 1);

// rooted.cc: one round, unless noted otherwise. Broadcast and reduce have one chunk, gather and
// scatter have `ranks` chunks, of which the root keeps its own.
plan::Schedule direct_broadcast(int ranks, Rank root);
plan::Schedule direct_reduce(int ranks, Rank root);
/// `ranks` chunks in two rounds: every rank reduces one, then the root collects them.
plan::Schedule scatter_gather_reduce(int ranks, Rank root);
plan::Schedule direct_scatter(int ranks, Rank root);
plan::Schedule direct_gather(int ranks, Rank root);

// scatter_all_gather.cc
/// `ranks` chunks, from `root` to all.
plan::Schedule scatter_all_gather_broadcast(int ranks, Rank root);

// star.cc
/// One chunk; rank 0 reduces what all others send, in ascending order of rank, then sends the
/// result to all.
plan::Schedule star_all_reduce(int ranks);

// swing.cc
/// As many chunks as the largest power of two <= ranks.
plan::Schedule swing_all_reduce(int ranks);

// torus.cc
/// On a grid of `rows` x `columns` ranks, numbered row by row. rows * columns chunks.
plan::Schedule torus_all_reduce(int rows, int columns);

}  // namespace stormo::schedule
