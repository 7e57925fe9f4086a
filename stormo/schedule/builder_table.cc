// The table of algorithms.
#include <stormo/schedule/builders.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include <stormo/plan/logical_shards.h>
#include <stormo/schedule/fold.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using std::int64_t;

// Numbers of transfers and chunks.
int64_t one_chunk(const ScheduleShape&) { return 1; }
int64_t chunk_per_rank(const ScheduleShape& s) { return s.ranks; }
int64_t pieces_per_rank(const ScheduleShape& s) { return int64_t{s.ranks} * s.pieces; }
int64_t chunk_per_piece(const ScheduleShape& s) { return s.pieces; }
/// Every rank sends, or receives, one chunk of every other.
int64_t pair_each(const ScheduleShape& s) { return int64_t{s.ranks} * (s.ranks - 1); }
int64_t pair_each_in_pieces(const ScheduleShape& s) { return pair_each(s) * s.pieces; }
int64_t once_each(const ScheduleShape& s) { return s.ranks - 1; }
int64_t once_each_in_pieces(const ScheduleShape& s) { return int64_t{s.ranks - 1} * s.pieces; }
int64_t num_hosts(const ScheduleShape& s) { return static_cast<int64_t>(s.hosts.size()); }
/// Pieces, each with a slice for every rank of the widest host.
int64_t slices_per_piece(const ScheduleShape& s) { return int64_t{widest(s.hosts)} * s.pieces; }
int64_t once_each_by_slice(const ScheduleShape& s) { return slices_per_piece(s) * (s.ranks - 1); }
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

/// How many bits are set in the numbers below `end`: the hops of their blocks in a binomial tree.
int64_t bits_below(int end) {
  int64_t bits = 0;
  for (int i = 0; i < end; ++i) bits += std::popcount(static_cast<unsigned>(i));
  return bits;
}

int64_t chunk_per_pair(const ScheduleShape& s) { return int64_t{s.ranks} * s.ranks; }
int64_t by_tree(const ScheduleShape& s) { return bits_below(s.ranks); }
int64_t by_bits_of_distance(const ScheduleShape& s) { return s.ranks * bits_below(s.ranks); }

constexpr std::array kRows = {
    Builder{.name = "bruck_all_gather",
            .description = "every rank sends all it has to ranks at doubling distances, for any n",
            .goal = GoalKind::kAllGather,
            .formulas = {"ceil(log2 n)", "(n-1)/n K"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return bruck_all_gather(s.ranks); }},
    Builder{.name = "direct_all_gather",
            .description = "every rank sends its chunk to all others at once",
            .goal = GoalKind::kAllGather,
            .formulas = {"1", "(n-1)/n K"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return direct_all_gather(s.ranks); }},
    Builder{
        .name = "hierarchical_all_gather",
        .description = "rings between hosts, every rank leads a slice, then direct inside hosts",
        .goal = GoalKind::kAllGather,
        .takes = {.hosts = true},
        .formulas = {"h-1 + 1", "(h-1)/h K/m + (m-1)/m K"},
        .size = {pair_each, chunk_per_rank},
        .make = [](const ScheduleShape& s) { return hierarchical_all_gather(s.hosts); }},
    Builder{.name = "pat_all_gather",
            .description = "a binomial tree for each chunk, farthest ranks first, for any n",
            .goal = GoalKind::kAllGather,
            .formulas = {"ceil(log2 n)", "(n-1)/n K"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return pat_all_gather(s.ranks); }},
    Builder{.name = "recursive_doubling_all_gather",
            .description = "peers at doubling distances swap all they have",
            .goal = GoalKind::kAllGather,
            .formulas = {"log2 q, +2 if n > q", "(n-1)/n K, up to 3 times if n > q"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return recursive_doubling_all_gather(s.ranks); }},
    Builder{.name = "ring_all_gather",
            .description = "chunks travel once around the ring",
            .goal = GoalKind::kAllGather,
            .takes = {.pieces = true},
            .formulas = {"n-1", "(n-1)/n K"},
            .size = {pair_each_in_pieces, pieces_per_rank},
            .make = [](const ScheduleShape& s) { return ring_all_gather(s.ranks, s.pieces); }},
    Builder{.name = "bruck_all_to_all",
            .description = "blocks take the steps of the bits of their distance",
            .goal = GoalKind::kAllToAll,
            .forwards = true,
            .formulas = {"ceil(log2 n)", "about (log2 n)/2n K"},
            .size = {by_bits_of_distance, chunk_per_pair},
            .make = [](const ScheduleShape& s) { return bruck_all_to_all(s.ranks); }},
    Builder{.name = "direct_all_to_all",
            .description = "every rank sends every block to its addressee at once",
            .goal = GoalKind::kAllToAll,
            .formulas = {"1", "(n-1)/n^2 K"},
            .size = {pair_each, chunk_per_pair},
            .make = [](const ScheduleShape& s) { return direct_all_to_all(s.ranks); }},
    Builder{.name = "pairwise_all_to_all",
            .description = "in round k every rank sends to the one k to its right",
            .goal = GoalKind::kAllToAll,
            .formulas = {"n-1", "(n-1)/n^2 K"},
            .size = {pair_each, chunk_per_pair},
            .make = [](const ScheduleShape& s) { return pairwise_all_to_all(s.ranks); }},
    Builder{.name = "binomial_broadcast",
            .description = "the number of ranks that have the data doubles in every round",
            .goal = GoalKind::kBroadcast,
            .takes = {.root = true},
            .formulas = {"ceil(log2 n)", "ceil(log2 n) K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return binomial_broadcast(s.ranks, s.root); }},
    Builder{
        .name = "chain_broadcast",
        .description = "pieces follow one another from rank to rank",
        .goal = GoalKind::kBroadcast,
        .takes = {.root = true, .pieces = true},
        .formulas = {"n-1 + p-1", "K"},
        .size = {once_each_in_pieces, chunk_per_piece},
        .make = [](const ScheduleShape& s) { return chain_broadcast(s.ranks, s.root, s.pieces); }},
    Builder{.name = "direct_broadcast",
            .description = "the root sends to all others at once",
            .goal = GoalKind::kBroadcast,
            .takes = {.root = true},
            .formulas = {"1", "(n-1) K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return direct_broadcast(s.ranks, s.root); }},
    Builder{.name = "hierarchical_broadcast",
            .description = "pieces travel from host to host, then to the other ranks of each",
            .goal = GoalKind::kBroadcast,
            .takes = {.hosts = true, .root = true, .pieces = true},
            .formulas = {"h-1 + p-1 + 1", "m K"},
            .size = {once_each_by_slice, slices_per_piece},
            .make =
                [](const ScheduleShape& s) {
                  return hierarchical_broadcast(s.hosts, s.root, s.pieces);
                }},
    Builder{.name = "leader_broadcast",
            .description = "a binomial tree among the leaders of hosts, then direct inside hosts",
            .goal = GoalKind::kBroadcast,
            .takes = {.hosts = true, .root = true},
            .formulas = {"ceil(log2 h) + 1", "(m-1 + ceil(log2 h)) K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return leader_broadcast(s.hosts, s.root); }},
    Builder{
        .name = "scatter_all_gather_broadcast",
        .description = "a binomial scatter, then a ring all-gather (van de Geijn)",
        .goal = GoalKind::kBroadcast,
        .takes = {.root = true},
        .formulas = {"ceil(log2 n) + n-1", "2(n-1)/n K"},
        .size = {pair_each, chunk_per_rank},
        .make =
            [](const ScheduleShape& s) { return scatter_all_gather_broadcast(s.ranks, s.root); }},
    Builder{.name = "binomial_gather",
            .description = "blocks are put together on the way down a binomial tree",
            .goal = GoalKind::kGather,
            .takes = {.root = true},
            .formulas = {"ceil(log2 n)", "up to K/2"},
            .size = {by_tree, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return binomial_gather(s.ranks, s.root); }},
    Builder{.name = "direct_gather",
            .description = "every rank sends its chunk to the root at once",
            .goal = GoalKind::kGather,
            .takes = {.root = true},
            .formulas = {"1", "K/n"},
            .size = {once_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return direct_gather(s.ranks, s.root); }},
    Builder{.name = "binomial_scatter",
            .description = "ranks pass on half of the blocks that they hold",
            .goal = GoalKind::kScatter,
            .takes = {.root = true},
            .formulas = {"ceil(log2 n)", "(n-1)/n K"},
            .size = {by_tree, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return binomial_scatter(s.ranks, s.root); }},
    Builder{.name = "direct_scatter",
            .description = "the root sends every rank its chunk at once",
            .goal = GoalKind::kScatter,
            .takes = {.root = true},
            .formulas = {"1", "(n-1)/n K"},
            .size = {once_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return direct_scatter(s.ranks, s.root); }},
    Builder{.name = "binomial_all_reduce",
            .description = "a binomial tree reduces to rank 0, then broadcasts from it",
            .goal = GoalKind::kAllReduce,
            .formulas = {"2 ceil(log2 n)", "ceil(log2 n) K"},
            .size = {twice_each, one_chunk},
            .make = [](const ScheduleShape& s) { return binomial_all_reduce(s.ranks); }},
    Builder{.name = "canonical_all_reduce",
            .description = "direct inside hosts and between them: one order of additions",
            .goal = GoalKind::kAllReduce,
            .takes = {.hosts = true},
            .formulas = {"4", "2(m-1)/m K + 2(h-1)/h K/m"},
            .size = {by_host, slices_per_host},
            .make = [](const ScheduleShape& s) { return canonical_all_reduce(s.hosts); }},
    Builder{.name = "direct_all_reduce",
            .description = "owners reduce their chunk from all others, then send it to all",
            .goal = GoalKind::kAllReduce,
            .by_rank = true,
            .formulas = {"2", "2(n-1)/n K"},
            .size = {two_phases, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return direct_all_reduce(s.ranks); }},
    Builder{
        .name = "double_tree_all_reduce",
        .description = "two binary trees share the data; leaves of one are interior in the other",
        .goal = GoalKind::kAllReduce,
        .takes = {.pieces = true},
        .formulas = {"2 floor(log2 n) + p-1", "2K"},
        .size = {over_two_trees, two_per_piece},
        .make = [](const ScheduleShape& s) { return double_tree_all_reduce(s.ranks, s.pieces); }},
    Builder{.name = plan::kFixedTreeAllReduce,
            .description = "one tree of halves for every element, whatever the number of ranks",
            .goal = GoalKind::kAllReduce,
            .formulas = {"ceil(log2 n) + 1", "2(n-1)/n K"},
            .size = {two_phases, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return fixed_tree_all_reduce(s.ranks); }},
    Builder{.name = "halving_doubling_all_reduce",
            .description = "peers swap halves of what is left, then double back (Rabenseifner)",
            .goal = GoalKind::kAllReduce,
            .formulas = {"2 log2 q, +2 if n > q", "2(q-1)/q K, +K if n > q"},
            .size = {by_halving, chunk_per_core_rank},
            .make = [](const ScheduleShape& s) { return halving_doubling_all_reduce(s.ranks); }},
    Builder{.name = "hierarchical_all_reduce",
            .description = "direct inside hosts, rings between hosts, every rank leads a slice",
            .goal = GoalKind::kAllReduce,
            .takes = {.hosts = true},
            .formulas = {"2(h-1) + 2", "2(m-1)/m K + 2(h-1)/h K/m"},
            .size = {by_host, slices_per_host},
            .make = [](const ScheduleShape& s) { return hierarchical_all_reduce(s.hosts); }},
    Builder{
        .name = "leader_all_reduce",
        .description = "hosts reduce to their leaders, which double recursively among themselves",
        .goal = GoalKind::kAllReduce,
        .takes = {.hosts = true},
        .formulas = {"log2 h + 2, +2 if h is no power of two", "(m-1 + log2 h) K"},
        .size = {by_leader, one_chunk},
        .make = [](const ScheduleShape& s) { return leader_all_reduce(s.hosts); }},
    Builder{.name = "one_shot_all_reduce",
            .description = "every rank sends all it has to all others and reduces for itself",
            .goal = GoalKind::kAllReduce,
            .formulas = {"1", "(n-1) K"},
            .size = {pair_each, one_chunk},
            .make = [](const ScheduleShape& s) { return one_shot_all_reduce(s.ranks); }},
    Builder{.name = "recursive_doubling_all_reduce",
            .description = "peers at doubling distances swap and add all they have",
            .goal = GoalKind::kAllReduce,
            .formulas = {"log2 q, +2 if n > q", "(log2 q) K, +K if n > q"},
            .size = {by_doubling, one_chunk},
            .make = [](const ScheduleShape& s) { return recursive_doubling_all_reduce(s.ranks); }},
    Builder{.name = "ring_all_reduce",
            .description = "ring reduce-scatter, then ring all-gather",
            .goal = GoalKind::kAllReduce,
            .takes = {.pieces = true},
            .formulas = {"2(n-1)", "2(n-1)/n K"},
            .size = {two_phases, pieces_per_rank},
            .make = [](const ScheduleShape& s) { return ring_all_reduce(s.ranks, s.pieces); }},
    Builder{.name = "star_all_reduce",
            .description = "rank 0 reduces from all others, then sends the result to all",
            .goal = GoalKind::kAllReduce,
            .formulas = {"2", "(n-1) K"},
            .size = {twice_each, one_chunk},
            .make = [](const ScheduleShape& s) { return star_all_reduce(s.ranks); }},
    Builder{
        .name = "swing_all_reduce",
        .description = "halving and doubling with peers that swing left and right, nearer on rings",
        .goal = GoalKind::kAllReduce,
        .formulas = {"2 log2 q, +2 if n > q", "2(q-1)/q K, +K if n > q"},
        .size = {by_halving, chunk_per_core_rank},
        .make = [](const ScheduleShape& s) { return swing_all_reduce(s.ranks); }},
    Builder{
        .name = "torus_all_reduce",
        .description = "rings along the rows (hosts) and columns of a grid",
        .goal = GoalKind::kAllReduce,
        .takes = {.hosts = true, .even_hosts = true},
        .formulas = {"2(m-1) + 2(h-1)", "2(n-1)/n K"},
        .size = {by_host, chunk_per_rank},
        .make =
            [](const ScheduleShape&
                   s) { return torus_all_reduce(static_cast<int>(s.hosts.size()), s.hosts[0]); }},
    Builder{.name = "binomial_reduce",
            .description = "partial sums halve the number of ranks in every round",
            .goal = GoalKind::kReduce,
            .takes = {.root = true},
            .formulas = {"ceil(log2 n)", "K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return binomial_reduce(s.ranks, s.root); }},
    Builder{.name = "direct_reduce",
            .description = "the root reduces from all others at once",
            .goal = GoalKind::kReduce,
            .takes = {.root = true},
            .formulas = {"1", "K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return direct_reduce(s.ranks, s.root); }},
    Builder{
        .name = "hierarchical_reduce",
        .description = "reduced inside hosts, pieces travel from host to host to the root's",
        .goal = GoalKind::kReduce,
        .takes = {.hosts = true, .root = true, .pieces = true},
        .formulas = {"h-1 + p-1 + 1", "K"},
        .size = {once_each_by_slice, slices_per_piece},
        .make =
            [](const ScheduleShape& s) { return hierarchical_reduce(s.hosts, s.root, s.pieces); }},
    Builder{.name = "leader_reduce",
            .description = "hosts reduce to their leaders, which reduce along a binomial tree",
            .goal = GoalKind::kReduce,
            .takes = {.hosts = true, .root = true},
            .formulas = {"ceil(log2 h) + 1", "K"},
            .size = {once_each, one_chunk},
            .make = [](const ScheduleShape& s) { return leader_reduce(s.hosts, s.root); }},
    Builder{.name = "scatter_gather_reduce",
            .description = "every rank reduces its chunk, then the root collects them",
            .goal = GoalKind::kReduce,
            .takes = {.root = true},
            .formulas = {"2", "K"},
            .size = {[](const ScheduleShape& s) { return pair_each(s) + once_each(s); },
                     chunk_per_rank},
            .make = [](const ScheduleShape& s) { return scatter_gather_reduce(s.ranks, s.root); }},
    Builder{.name = "canonical_reduce_scatter",
            .description = "direct inside hosts and between them: one order of additions",
            .goal = GoalKind::kReduceScatter,
            .takes = {.hosts = true},
            .formulas = {"2", "(m-1)/m K + (h-1)/h K/m"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return canonical_reduce_scatter(s.hosts); }},
    Builder{.name = "direct_reduce_scatter",
            .description = "every rank reduces its chunk from all others at once",
            .goal = GoalKind::kReduceScatter,
            .formulas = {"1", "(n-1)/n K"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return direct_reduce_scatter(s.ranks); }},
    Builder{
        .name = "hierarchical_reduce_scatter",
        .description = "direct inside hosts, then rings between hosts, every rank leads a slice",
        .goal = GoalKind::kReduceScatter,
        .takes = {.hosts = true},
        .formulas = {"h-1 + 1", "(m-1)/m K + (h-1)/h K/m"},
        .size = {pair_each, chunk_per_rank},
        .make = [](const ScheduleShape& s) { return hierarchical_reduce_scatter(s.hosts); }},
    Builder{.name = "pat_reduce_scatter",
            .description = "a binomial tree for each chunk, nearest ranks first, for any n",
            .goal = GoalKind::kReduceScatter,
            .formulas = {"ceil(log2 n)", "(n-1)/n K"},
            .size = {pair_each, chunk_per_rank},
            .make = [](const ScheduleShape& s) { return pat_reduce_scatter(s.ranks); }},
    Builder{
        .name = "recursive_halving_reduce_scatter",
        .description = "peers at halving distances swap halves of what is left",
        .goal = GoalKind::kReduceScatter,
        .formulas = {"log2 q, +2 if n > q", "(n-1)/n K"},
        .size = {pair_each, chunk_per_rank},
        .make = [](const ScheduleShape& s) { return recursive_halving_reduce_scatter(s.ranks); }},
    Builder{.name = "ring_reduce_scatter",
            .description = "partial sums travel once around the ring",
            .goal = GoalKind::kReduceScatter,
            .takes = {.pieces = true},
            .formulas = {"n-1", "(n-1)/n K"},
            .size = {pair_each_in_pieces, pieces_per_rank},
            .make = [](const ScheduleShape& s) { return ring_reduce_scatter(s.ranks, s.pieces); }},
    Builder{.name = "brent_kung_scan",
            .description = "sums of blocks up a tree, prefixes down again",
            .goal = GoalKind::kScan,
            .formulas = {"floor(log2 n) + floor(log2 2n/3)", "floor(log2 n) K"},
            .size = {up_and_down, one_chunk},
            .make = [](const ScheduleShape& s) { return brent_kung_scan(s.ranks); }},
    Builder{.name = "chain_scan",
            .description = "pieces travel from rank to rank and grow by every rank's term",
            .goal = GoalKind::kScan,
            .takes = {.pieces = true},
            .formulas = {"n-1 + p-1", "K"},
            .size = {once_each_in_pieces, chunk_per_piece},
            .make = [](const ScheduleShape& s) { return chain_scan(s.ranks, s.pieces); }},
};

}  // namespace

std::span<const Builder> builders() {
  static const std::vector<Builder> sorted = [] {
    std::vector<Builder> rows(kRows.begin(), kRows.end());
    std::ranges::sort(rows, {},
                      [](const Builder& b) { return std::pair(to_string(b.goal), b.name); });
    return rows;
  }();
  return sorted;
}

}  // namespace stormo::schedule
