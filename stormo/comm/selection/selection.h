#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>
#include <stormo/schedule/builders.h>

namespace stormo::comm {

/// How ranks are placed on hosts, as far as it matters for the choice of an algorithm.
/// kCrowdedHost: one host with fewer cores than ranks, where the number of ranks that work at the
/// same time matters.
enum class HostLayout : std::uint8_t { kOneHost, kCrowdedHost, kOnePerHost, kEven, kUneven };
/// `crowded` is used only for a single host.
HostLayout host_layout_of(const std::vector<int>& ranks_per_host, bool crowded = false);
std::string_view to_string(HostLayout layout);

/// An algorithm and the number of pieces into which it cuts its data.
struct Choice {
  const schedule::Builder* builder = nullptr;  ///< of schedule::builders()
  int pieces = 1;
  auto operator<=>(const Choice&) const = default;
};

/// OK if the algorithm can reach the goal among these hosts; else kInvalidArgument.
Status check_choice(const Choice& choice, plan::GoalKind goal,
                    const std::vector<int>& ranks_per_host);

/// The schedule of a checked choice; kInvalidArgument when it would be too large.
Result<plan::Schedule> build(const Choice& choice, const plan::Goal& goal,
                             const std::vector<int>& ranks_per_host);

/// Rules for choosing algorithms. A plain value, equal on all ranks of a job.
struct Selection {
  struct Rule {
    plan::GoalKind goal = plan::GoalKind::kAllReduce;
    HostLayout layout = HostLayout::kOneHost;
    int max_ranks = 0;            ///< 0: any
    std::uint64_t max_bytes = 0;  ///< of the whole buffer, as analysis::cost counts it; 0: any
    Choice choice;
    bool operator==(const Rule&) const = default;
  };
  /// The first rule that fits is used; if none fits, the built-in rules are. A rule for one host
  /// also fits a crowded host.
  std::vector<Rule> rules;
  bool operator==(const Selection&) const = default;

  /// The built-in rules, measured on hosts connected by 1 Gbit/s.
  static const Selection& defaults();

  /// The rule that is used. A pure function; O(rules).
  const Rule& rule_for(plan::GoalKind goal, HostLayout layout, int ranks,
                       std::uint64_t bytes) const;
  Choice choose(plan::GoalKind goal, HostLayout layout, int ranks, std::uint64_t bytes) const {
    return rule_for(goal, layout, ranks, bytes).choice;
  }
};

/// Versioned text form, a rule per line:
///   selection v1
///   all_reduce one_per_host ranks=0 bytes=8192 recursive_doubling_all_reduce pieces=1
std::string to_text(const Selection& selection);
/// Inverse of to_text; kBadPlan with line and column for anything else.
Result<Selection> parse_selection(std::string_view text);
/// The selection in a file; kInvalidArgument that names file, line and column otherwise.
Result<Selection> read_selection(const std::string& path);

}  // namespace stormo::comm
