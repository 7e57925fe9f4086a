// The rows of algorithms that reduce: all_reduce, reduce, reduce_scatter, scan.
#include <array>
#include <bit>

#include <stormo/schedule/builder_rows.h>
#include <stormo/schedule/fold.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using std::int64_t;

int64_t twice_each(const ScheduleShape& s) { return 2 * once_each(s); }
int64_t two_phases(const ScheduleShape& s) { return 2 * pair_each_in_pieces(s); }
int64_t over_two_trees(const ScheduleShape& s) { return 4 * once_each_in_pieces(s); }
int64_t two_per_piece(const ScheduleShape& s) { return 2 * chunk_per_piece(s); }
int64_t chunk_per_core_rank(const ScheduleShape& s) { return Fold(s.ranks).core; }

int64_t by_doubling(const ScheduleShape& s) {
  const Fold fold(s.ranks);
  return int64_t{fold.core} * std::countr_zero(static_cast<unsigned>(fold.core)) +
         2 * fold.num_guests;
}
int64_t by_halving(const ScheduleShape& s) {
  const Fold fold(s.ranks);
  return 2 * int64_t{fold.core} * (fold.core - 1 + fold.num_guests);
}
int64_t slices_per_host(const ScheduleShape& s) { return num_hosts(s) * widest(s.hosts); }
int64_t by_host(const ScheduleShape& s) {
  // inside: every chunk to or from all but one of each host; between: a ring of hosts for each
  // slice
  return 2 * slices_per_host(s) * (s.ranks - num_hosts(s)) +
         2 * slices_per_host(s) * (num_hosts(s) - 1);
}
int64_t by_leader(const ScheduleShape& s) {
  return 2 * (s.ranks - num_hosts(s)) + by_doubling({.ranks = static_cast<int>(num_hosts(s))});
}
int64_t up_and_down(const ScheduleShape& s) {
  const auto n = static_cast<unsigned>(s.ranks);
  // up: every rank as often as its number, from 1, has trailing zeros; down: once, unless its
  // number is a power of two
  return (int64_t{n} - std::popcount(n)) + (int64_t{n} - std::bit_width(n));
}

constexpr std::array kRows = {
    Builder{.name = "binomial_all_reduce",
            .description = "a binomial tree reduces to rank 0, then broadcasts from it",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2 ceil(log2 n)",
            .bytes_formula = "ceil(log2 n) K",
            .num_transfers = twice_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return binomial_all_reduce(s.ranks); }},
    Builder{.name = "canonical_all_reduce",
            .description = "direct inside hosts and between them: one order of additions",
            .goal = GoalKind::kAllReduce,
            .takes_hosts = true,
            .rounds_formula = "4",
            .bytes_formula = "2(m-1)/m K + 2(h-1)/h K/m",
            .num_transfers = by_host,
            .num_chunks = slices_per_host,
            .make = [](const ScheduleShape& s) { return canonical_all_reduce(s.hosts); }},
    Builder{.name = "direct_all_reduce",
            .description = "owners reduce their chunk from all others, then send it to all",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2",
            .bytes_formula = "2(n-1)/n K",
            .num_transfers = two_phases,
            .num_chunks = chunk_per_rank,
            .make = [](const ScheduleShape& s) { return direct_all_reduce(s.ranks); }},
    Builder{
        .name = "double_tree_all_reduce",
        .description = "two binary trees share the data; leaves of one are interior in the other",
        .goal = GoalKind::kAllReduce,
        .takes_pieces = true,
        .rounds_formula = "2 floor(log2 n) + p-1",
        .bytes_formula = "2K",
        .num_transfers = over_two_trees,
        .num_chunks = two_per_piece,
        .make = [](const ScheduleShape& s) { return double_tree_all_reduce(s.ranks, s.pieces); }},
    Builder{.name = "halving_doubling_all_reduce",
            .description = "peers swap halves of what is left, then double back (Rabenseifner)",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2 log2 q, +2 if n > q",
            .bytes_formula = "2(q-1)/q K, +K if n > q",
            .num_transfers = by_halving,
            .num_chunks = chunk_per_core_rank,
            .make = [](const ScheduleShape& s) { return halving_doubling_all_reduce(s.ranks); }},
    Builder{.name = "hierarchical_all_reduce",
            .description = "direct inside hosts, rings between hosts, every rank leads a slice",
            .goal = GoalKind::kAllReduce,
            .takes_hosts = true,
            .rounds_formula = "2(h-1) + 2",
            .bytes_formula = "2(m-1)/m K + 2(h-1)/h K/m",
            .num_transfers = by_host,
            .num_chunks = slices_per_host,
            .make = [](const ScheduleShape& s) { return hierarchical_all_reduce(s.hosts); }},
    Builder{
        .name = "leader_all_reduce",
        .description = "hosts reduce to their leaders, which double recursively among themselves",
        .goal = GoalKind::kAllReduce,
        .takes_hosts = true,
        .rounds_formula = "log2 h + 2, +2 if h is no power of two",
        .bytes_formula = "(m-1 + log2 h) K",
        .num_transfers = by_leader,
        .num_chunks = one_chunk,
        .make = [](const ScheduleShape& s) { return leader_all_reduce(s.hosts); }},
    Builder{.name = "one_shot_all_reduce",
            .description = "every rank sends all it has to all others and reduces for itself",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "1",
            .bytes_formula = "(n-1) K",
            .num_transfers = pair_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return one_shot_all_reduce(s.ranks); }},
    Builder{.name = "recursive_doubling_all_reduce",
            .description = "peers at doubling distances swap and add all they have",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "log2 q, +2 if n > q",
            .bytes_formula = "(log2 q) K, +K if n > q",
            .num_transfers = by_doubling,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return recursive_doubling_all_reduce(s.ranks); }},
    Builder{.name = "ring_all_reduce",
            .description = "ring reduce-scatter, then ring all-gather",
            .goal = GoalKind::kAllReduce,
            .takes_pieces = true,
            .rounds_formula = "2(n-1)",
            .bytes_formula = "2(n-1)/n K",
            .num_transfers = two_phases,
            .num_chunks = pieces_per_rank,
            .make = [](const ScheduleShape& s) { return ring_all_reduce(s.ranks, s.pieces); }},
    Builder{.name = "star_all_reduce",
            .description = "rank 0 reduces from all others, then sends the result to all",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2",
            .bytes_formula = "(n-1) K",
            .num_transfers = twice_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return star_all_reduce(s.ranks); }},
    Builder{
        .name = "swing_all_reduce",
        .description = "halving and doubling with peers that swing left and right, nearer on rings",
        .goal = GoalKind::kAllReduce,
        .rounds_formula = "2 log2 q, +2 if n > q",
        .bytes_formula = "2(q-1)/q K, +K if n > q",
        .num_transfers = by_halving,
        .num_chunks = chunk_per_core_rank,
        .make = [](const ScheduleShape& s) { return swing_all_reduce(s.ranks); }},
    Builder{.name = "torus_all_reduce",
            .description = "rings along the rows (hosts) and columns of a grid",
            .goal = GoalKind::kAllReduce,
            .takes_hosts = true,
            .even_hosts = true,
            .rounds_formula = "2(m-1) + 2(h-1)",
            .bytes_formula = "2(n-1)/n K",
            .num_transfers = by_host,
            .num_chunks = chunk_per_rank,
            .make =
                [](const ScheduleShape& s) {
                  return torus_all_reduce(static_cast<int>(s.hosts.size()), s.hosts[0]);
                }},
    Builder{.name = "binomial_reduce",
            .description = "partial sums halve the number of ranks in every round",
            .goal = GoalKind::kReduce,
            .takes_root = true,
            .rounds_formula = "ceil(log2 n)",
            .bytes_formula = "K",
            .num_transfers = once_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return binomial_reduce(s.ranks, s.root); }},
    Builder{.name = "direct_reduce",
            .description = "the root reduces from all others at once",
            .goal = GoalKind::kReduce,
            .takes_root = true,
            .rounds_formula = "1",
            .bytes_formula = "K",
            .num_transfers = once_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return direct_reduce(s.ranks, s.root); }},
    Builder{
        .name = "hierarchical_reduce",
        .description = "reduced inside hosts, pieces travel from host to host to the root's",
        .goal = GoalKind::kReduce,
        .takes_hosts = true,
        .takes_root = true,
        .takes_pieces = true,
        .rounds_formula = "h-1 + p-1 + 1",
        .bytes_formula = "K",
        .num_transfers = once_each_by_slice,
        .num_chunks = slices_per_piece,
        .make =
            [](const ScheduleShape& s) { return hierarchical_reduce(s.hosts, s.root, s.pieces); }},
    Builder{.name = "leader_reduce",
            .description = "hosts reduce to their leaders, which reduce along a binomial tree",
            .goal = GoalKind::kReduce,
            .takes_hosts = true,
            .takes_root = true,
            .rounds_formula = "ceil(log2 h) + 1",
            .bytes_formula = "K",
            .num_transfers = once_each,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return leader_reduce(s.hosts, s.root); }},
    Builder{.name = "scatter_gather_reduce",
            .description = "every rank reduces its chunk, then the root collects them",
            .goal = GoalKind::kReduce,
            .takes_root = true,
            .rounds_formula = "2",
            .bytes_formula = "K",
            .num_transfers = [](const ScheduleShape& s) { return pair_each(s) + once_each(s); },
            .num_chunks = chunk_per_rank,
            .make = [](const ScheduleShape& s) { return scatter_gather_reduce(s.ranks, s.root); }},
    Builder{.name = "canonical_reduce_scatter",
            .description = "direct inside hosts and between them: one order of additions",
            .goal = GoalKind::kReduceScatter,
            .takes_hosts = true,
            .rounds_formula = "2",
            .bytes_formula = "(m-1)/m K + (h-1)/h K/m",
            .num_transfers = pair_each,
            .num_chunks = chunk_per_rank,
            .make = [](const ScheduleShape& s) { return canonical_reduce_scatter(s.hosts); }},
    Builder{.name = "direct_reduce_scatter",
            .description = "every rank reduces its chunk from all others at once",
            .goal = GoalKind::kReduceScatter,
            .rounds_formula = "1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = pair_each,
            .num_chunks = chunk_per_rank,
            .make = [](const ScheduleShape& s) { return direct_reduce_scatter(s.ranks); }},
    Builder{
        .name = "hierarchical_reduce_scatter",
        .description = "direct inside hosts, then rings between hosts, every rank leads a slice",
        .goal = GoalKind::kReduceScatter,
        .takes_hosts = true,
        .rounds_formula = "h-1 + 1",
        .bytes_formula = "(m-1)/m K + (h-1)/h K/m",
        .num_transfers = pair_each,
        .num_chunks = chunk_per_rank,
        .make = [](const ScheduleShape& s) { return hierarchical_reduce_scatter(s.hosts); }},
    Builder{.name = "pat_reduce_scatter",
            .description = "a binomial tree for each chunk, nearest ranks first, for any n",
            .goal = GoalKind::kReduceScatter,
            .rounds_formula = "ceil(log2 n)",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = pair_each,
            .num_chunks = chunk_per_rank,
            .make = [](const ScheduleShape& s) { return pat_reduce_scatter(s.ranks); }},
    Builder{
        .name = "recursive_halving_reduce_scatter",
        .description = "peers at halving distances swap halves of what is left",
        .goal = GoalKind::kReduceScatter,
        .rounds_formula = "log2 q, +2 if n > q",
        .bytes_formula = "(n-1)/n K",
        .num_transfers = pair_each,
        .num_chunks = chunk_per_rank,
        .make = [](const ScheduleShape& s) { return recursive_halving_reduce_scatter(s.ranks); }},
    Builder{.name = "ring_reduce_scatter",
            .description = "partial sums travel once around the ring",
            .goal = GoalKind::kReduceScatter,
            .takes_pieces = true,
            .rounds_formula = "n-1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = pair_each_in_pieces,
            .num_chunks = pieces_per_rank,
            .make = [](const ScheduleShape& s) { return ring_reduce_scatter(s.ranks, s.pieces); }},
    Builder{.name = "brent_kung_scan",
            .description = "sums of blocks up a tree, prefixes down again",
            .goal = GoalKind::kScan,
            .rounds_formula = "floor(log2 n) + floor(log2 2n/3)",
            .bytes_formula = "floor(log2 n) K",
            .num_transfers = up_and_down,
            .num_chunks = one_chunk,
            .make = [](const ScheduleShape& s) { return brent_kung_scan(s.ranks); }},
    Builder{.name = "chain_scan",
            .description = "pieces travel from rank to rank and grow by every rank's term",
            .goal = GoalKind::kScan,
            .takes_pieces = true,
            .rounds_formula = "n-1 + p-1",
            .bytes_formula = "K",
            .num_transfers = once_each_in_pieces,
            .num_chunks = chunk_per_piece,
            .make = [](const ScheduleShape& s) { return chain_scan(s.ranks, s.pieces); }},
};

}  // namespace

std::span<const Builder> reducing_builders() { return kRows; }

}  // namespace stormo::schedule
