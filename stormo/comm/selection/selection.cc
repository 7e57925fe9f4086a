#include <stormo/comm/selection/selection.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/text/text.h>

namespace stormo::comm {
namespace {

using plan::GoalKind;

constexpr std::string_view kShipped = R"(selection v1
all_reduce crowded_host ranks=3 bytes=0 double_tree_all_reduce pieces=1
all_reduce crowded_host ranks=0 bytes=32768 leader_all_reduce pieces=1
all_reduce one_host ranks=2 bytes=4096 star_all_reduce pieces=1
all_reduce one_host ranks=0 bytes=0 direct_all_reduce pieces=1
all_reduce one_per_host ranks=2 bytes=2097152 recursive_doubling_all_reduce pieces=1
all_reduce one_per_host ranks=3 bytes=8192 binomial_all_reduce pieces=1
all_reduce one_per_host ranks=4 bytes=8192 star_all_reduce pieces=1
all_reduce one_per_host ranks=0 bytes=8192 recursive_doubling_all_reduce pieces=1
all_reduce one_per_host ranks=0 bytes=131072 halving_doubling_all_reduce pieces=1
all_reduce one_per_host ranks=0 bytes=0 ring_all_reduce pieces=1
all_reduce even ranks=4 bytes=131072 leader_all_reduce pieces=1
all_reduce even ranks=0 bytes=65536 leader_all_reduce pieces=1
all_reduce even ranks=0 bytes=0 hierarchical_all_reduce pieces=1
all_reduce uneven ranks=0 bytes=32768 leader_all_reduce pieces=1
all_reduce uneven ranks=0 bytes=0 hierarchical_all_reduce pieces=1
reduce_scatter one_host ranks=0 bytes=0 direct_reduce_scatter pieces=1
reduce_scatter one_per_host ranks=0 bytes=0 ring_reduce_scatter pieces=1
reduce_scatter even ranks=0 bytes=0 hierarchical_reduce_scatter pieces=1
reduce_scatter uneven ranks=0 bytes=0 hierarchical_reduce_scatter pieces=1
all_gather one_host ranks=0 bytes=0 direct_all_gather pieces=1
all_gather one_per_host ranks=0 bytes=32768 bruck_all_gather pieces=1
all_gather one_per_host ranks=0 bytes=0 ring_all_gather pieces=1
all_gather even ranks=0 bytes=0 hierarchical_all_gather pieces=1
all_gather uneven ranks=0 bytes=0 hierarchical_all_gather pieces=1
broadcast one_host ranks=0 bytes=0 direct_broadcast pieces=1
broadcast one_per_host ranks=0 bytes=65536 binomial_broadcast pieces=1
broadcast one_per_host ranks=0 bytes=0 scatter_all_gather_broadcast pieces=1
broadcast even ranks=0 bytes=65536 leader_broadcast pieces=1
broadcast even ranks=0 bytes=0 hierarchical_broadcast pieces=8
broadcast uneven ranks=0 bytes=65536 leader_broadcast pieces=1
broadcast uneven ranks=0 bytes=0 hierarchical_broadcast pieces=8
reduce one_host ranks=0 bytes=0 scatter_gather_reduce pieces=1
reduce one_per_host ranks=0 bytes=0 binomial_reduce pieces=1
reduce even ranks=0 bytes=65536 leader_reduce pieces=1
reduce even ranks=0 bytes=0 hierarchical_reduce pieces=8
reduce uneven ranks=0 bytes=65536 leader_reduce pieces=1
reduce uneven ranks=0 bytes=0 hierarchical_reduce pieces=8
gather one_host ranks=0 bytes=0 direct_gather pieces=1
gather one_per_host ranks=0 bytes=0 direct_gather pieces=1
gather even ranks=0 bytes=0 direct_gather pieces=1
gather uneven ranks=0 bytes=0 direct_gather pieces=1
scatter one_host ranks=0 bytes=0 direct_scatter pieces=1
scatter one_per_host ranks=0 bytes=0 direct_scatter pieces=1
scatter even ranks=0 bytes=0 direct_scatter pieces=1
scatter uneven ranks=0 bytes=0 direct_scatter pieces=1
scan one_host ranks=0 bytes=0 brent_kung_scan pieces=1
scan one_per_host ranks=0 bytes=0 brent_kung_scan pieces=1
scan even ranks=0 bytes=0 brent_kung_scan pieces=1
scan uneven ranks=0 bytes=0 brent_kung_scan pieces=1
all_to_all one_host ranks=0 bytes=0 direct_all_to_all pieces=1
all_to_all one_per_host ranks=0 bytes=0 pairwise_all_to_all pieces=1
all_to_all even ranks=0 bytes=0 pairwise_all_to_all pieces=1
all_to_all uneven ranks=0 bytes=0 pairwise_all_to_all pieces=1
)";

constexpr HostLayout kLayouts[] = {HostLayout::kOneHost, HostLayout::kCrowdedHost,
                                   HostLayout::kOnePerHost, HostLayout::kEven, HostLayout::kUneven};

template <class Kinds>
auto read_kind(plan::TextReader& in, const Kinds& kinds, std::string_view what) {
  const std::string word = in.word(what);
  std::string known;
  for (const auto kind : kinds) {
    if (word == to_string(kind)) return kind;
    known += (known.empty() ? "" : ", ") + std::string(to_string(kind));
  }
  if (in.ok()) in.fail_at_token("unknown " + std::string(what) + "; write one of " + known);
  return *std::begin(kinds);
}

Selection::Rule read_rule(plan::TextReader& in) {
  Selection::Rule rule;
  rule.goal = read_kind(in, plan::kGoalKinds, "goal");
  rule.layout = read_kind(in, kLayouts, "host layout");
  rule.max_ranks = static_cast<int>(in.field("ranks", 0, plan::kMaxRanks));
  rule.max_bytes =
      static_cast<std::uint64_t>(in.field("bytes", 0, std::numeric_limits<std::int64_t>::max()));
  const std::string name = in.word("the algorithm's name");
  const auto builder = schedule::find_builder(name);
  if (in.ok() && !builder.ok()) in.fail_at_token(builder.status().message());
  if (builder.ok()) rule.choice.builder = *builder;
  if (builder.ok() && (*builder)->goal != rule.goal) {
    in.fail_at_token(name + " is no algorithm for " + std::string(to_string(rule.goal)));
  }
  rule.choice.pieces = static_cast<int>(in.field("pieces", 1, plan::kMaxChunks));
  in.expect_line_end();
  return rule;
}

bool holds_for(HostLayout rule, HostLayout layout) {
  return rule == layout || (rule == HostLayout::kOneHost && layout == HostLayout::kCrowdedHost);
}

}  // namespace

HostLayout host_layout_of(const std::vector<int>& ranks_per_host, bool crowded) {
  if (ranks_per_host.size() == 1) return crowded ? HostLayout::kCrowdedHost : HostLayout::kOneHost;
  const int first = ranks_per_host.front();
  const bool even = std::all_of(ranks_per_host.begin(), ranks_per_host.end(),
                                [first](int n) { return n == first; });
  if (!even) return HostLayout::kUneven;
  return first == 1 ? HostLayout::kOnePerHost : HostLayout::kEven;
}

std::string_view to_string(HostLayout layout) {
  switch (layout) {
    case HostLayout::kOneHost: return "one_host";
    case HostLayout::kCrowdedHost: return "crowded_host";
    case HostLayout::kOnePerHost: return "one_per_host";
    case HostLayout::kEven: return "even";
    case HostLayout::kUneven: return "uneven";
  }
  return "unknown";
}

Status check_choice(const Choice& choice, GoalKind goal, const std::vector<int>& ranks_per_host) {
  const std::string name(choice.builder->name);
  if (choice.builder->goal != goal) {
    return invalid_argument(name + " is no algorithm for " + std::string(to_string(goal)));
  }
  if (choice.builder->takes.even_hosts && host_layout_of(ranks_per_host) == HostLayout::kUneven) {
    return invalid_argument(name + " needs as many ranks on every host");
  }
  return {};
}

Result<plan::Schedule> build(const Choice& choice, const plan::Goal& goal,
                             const std::vector<int>& ranks_per_host) {
  return choice.builder->build({.ranks = schedule::ranks_of(ranks_per_host),
                                .hosts = ranks_per_host,
                                .root = goal.root,
                                .pieces = choice.pieces});
}

const Selection& Selection::defaults() {
  static const Selection selection = parse_selection(kShipped).take_or_throw();
  return selection;
}

const Selection::Rule& Selection::rule_for(GoalKind goal, HostLayout layout, int ranks,
                                           std::uint64_t bytes) const {
  for (const Rule& rule : rules) {
    if (rule.goal == goal && holds_for(rule.layout, layout) &&
        (rule.max_ranks == 0 || ranks <= rule.max_ranks) &&
        (rule.max_bytes == 0 || bytes <= rule.max_bytes)) {
      return rule;
    }
  }
  STORMO_CHECK(this != &defaults(), "the default selection has a rule for everything");
  return defaults().rule_for(goal, layout, ranks, bytes);
}

std::string to_text(const Selection& selection) {
  std::string out = "selection v1\n";
  for (const Selection::Rule& r : selection.rules) {
    out += std::string(to_string(r.goal)) + " " + std::string(to_string(r.layout)) +
           " ranks=" + std::to_string(r.max_ranks) + " bytes=" + std::to_string(r.max_bytes) + " " +
           std::string(r.choice.builder->name) + " pieces=" + std::to_string(r.choice.pieces) +
           "\n";
  }
  return out;
}

Result<Selection> parse_selection(std::string_view text) {
  plan::TextReader in(text);
  in.expect_header("selection");
  Selection selection;
  while (!in.at_end()) {
    selection.rules.push_back(read_rule(in));
    if (selection.rules.size() > 10000) in.fail("too many rules");
  }
  if (!in.ok()) return in.status();
  return selection;
}

Result<Selection> read_selection(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return invalid_argument("cannot read the selection of algorithms '" + path + "'");
  auto selection = parse_selection(text);
  if (!selection.ok()) return invalid_argument(path + ":" + selection.status().message());
  return selection;
}

}  // namespace stormo::comm
