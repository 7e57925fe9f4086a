#include <stormo/schedule/builders.h>

#include <array>
#include <string>
#include <vector>

#include <stormo/base/units.h>
#include <stormo/plan/limits.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using std::int64_t;

int64_t one_phase(int ranks, int /*hosts*/) { return int64_t{ranks} * (ranks - 1); }
int64_t two_phases(int ranks, int hosts) { return 2 * one_phase(ranks, hosts); }
int64_t once_each(int ranks, int /*hosts*/) { return ranks - 1; }
int64_t twice_each(int ranks, int /*hosts*/) { return 2 * int64_t{ranks - 1}; }
int64_t by_host(int ranks, int hosts) {
  const int64_t per_host = ranks / hosts;
  // inside: h hosts, m(m-1) pairs, h chunks per slice; between: m rings of h; each forth and back
  return 2 * int64_t{hosts} * hosts * per_host * (per_host - 1) +
         2 * per_host * hosts * (hosts - 1);
}

constexpr std::array kBuilders = {
    Builder{.name = "direct_all_gather",
            .description = "every rank sends its chunk to all others at once",
            .goal = GoalKind::kAllGather,
            .rounds_formula = "1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = one_phase,
            .make = [](int n, int, Rank) { return direct_all_gather(n); }},
    Builder{.name = "ring_all_gather",
            .description = "chunks travel once around the ring",
            .goal = GoalKind::kAllGather,
            .rounds_formula = "n-1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = one_phase,
            .make = [](int n, int, Rank) { return ring_all_gather(n); }},
    Builder{.name = "direct_all_reduce",
            .description = "owners reduce their chunk from all others, then send it to all",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2",
            .bytes_formula = "2(n-1)/n K",
            .num_transfers = two_phases,
            .make = [](int n, int, Rank) { return direct_all_reduce(n); }},
    Builder{
        .name = "hierarchical_all_reduce",
        .description = "direct inside hosts, rings between hosts, every rank leads a slice",
        .goal = GoalKind::kAllReduce,
        .takes_hosts = true,
        .rounds_formula = "2(h-1) + 2",
        .bytes_formula = "2(m-1)/m K + 2(h-1)/h K/m",
        .num_transfers = by_host,
        .make = [](int n, int hosts, Rank) { return hierarchical_all_reduce(hosts, n / hosts); }},
    Builder{.name = "ring_all_reduce",
            .description = "ring reduce-scatter, then ring all-gather",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2(n-1)",
            .bytes_formula = "2(n-1)/n K",
            .num_transfers = two_phases,
            .make = [](int n, int, Rank) { return ring_all_reduce(n); }},
    Builder{.name = "star_all_reduce",
            .description = "rank 0 reduces from all others, then sends the result to all",
            .goal = GoalKind::kAllReduce,
            .rounds_formula = "2",
            .bytes_formula = "(n-1) K",
            .num_transfers = twice_each,
            .make = [](int n, int, Rank) { return star_all_reduce(n); }},
    Builder{.name = "binomial_broadcast",
            .description = "the number of ranks that have the data doubles in every round",
            .goal = GoalKind::kBroadcast,
            .takes_root = true,
            .rounds_formula = "ceil(log2 n)",
            .bytes_formula = "ceil(log2 n) K",
            .num_transfers = once_each,
            .make = [](int n, int, Rank root) { return binomial_broadcast(n, root); }},
    Builder{.name = "direct_reduce_scatter",
            .description = "every rank reduces its chunk from all others at once",
            .goal = GoalKind::kReduceScatter,
            .rounds_formula = "1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = one_phase,
            .make = [](int n, int, Rank) { return direct_reduce_scatter(n); }},
    Builder{.name = "ring_reduce_scatter",
            .description = "partial sums travel once around the ring",
            .goal = GoalKind::kReduceScatter,
            .rounds_formula = "n-1",
            .bytes_formula = "(n-1)/n K",
            .num_transfers = one_phase,
            .make = [](int n, int, Rank) { return ring_reduce_scatter(n); }},
};

}  // namespace

Result<plan::Schedule> Builder::build(int ranks, int hosts, Rank root) const {
  const auto bad = [&](std::string what) {
    return invalid_argument(std::string(name) + ": " + std::move(what));
  };
  if (ranks < 1 || ranks > plan::kMaxRanks) {
    return bad(std::to_string(ranks) + " ranks; give 1 to " + std::to_string(plan::kMaxRanks));
  }
  if (takes_hosts && (hosts < 1 || ranks % hosts != 0)) {
    return bad(std::to_string(ranks) + " ranks cannot be spread evenly over " +
               std::to_string(hosts) + " hosts; give a number of hosts that divides the ranks");
  }
  if (takes_root && (root < 0 || root >= ranks)) {
    return bad("root " + std::to_string(root) + " is not a rank; give 0 to " +
               std::to_string(ranks - 1));
  }
  if (const int64_t transfers = num_transfers(ranks, hosts); transfers > plan::kMaxTransfers) {
    return bad(std::to_string(ranks) + " ranks need " + std::to_string(transfers) +
               " transfers, more than the " + std::to_string(plan::kMaxTransfers) +
               " that one plan may hold; use fewer ranks or another algorithm");
  }
  return make(ranks, hosts, root);
}

std::span<const Builder> builders() { return kBuilders; }

Result<const Builder*> find_builder(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Builder& b : kBuilders) {
    if (b.name == name) return &b;
    names.push_back(b.name);
  }
  std::string message = "no algorithm is called '" + std::string(name) + "'";
  if (const std::string_view near = nearest_match(name, names); !near.empty()) {
    message += "; did you mean '" + std::string(near) + "'?";
  } else {
    message += "; 'stormo plan list' prints all names";
  }
  return Status(Code::kNotFound, std::move(message));
}

}  // namespace stormo::schedule
