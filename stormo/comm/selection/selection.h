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

/// How ranks lie on hosts, as far as algorithms care. kCrowdedHost: one host with fewer cores than
/// ranks, where it counts how many ranks have work at once.
enum class Placement : std::uint8_t { kOneHost, kCrowdedHost, kOnePerHost, kEven, kUneven };
/// `crowded` counts only for one host.
Placement placement_of(const std::vector<int>& ranks_per_host, bool crowded = false);
std::string_view to_string(Placement placement);

/// An algorithm and how finely it cuts its data.
struct Choice {
  const schedule::Builder* builder = nullptr;  ///< of schedule::builders()
  int pieces = 1;
  auto operator<=>(const Choice&) const = default;
};

/// Whether the algorithm can reach the goal among these hosts.
Status check_choice(const Choice& choice, plan::GoalKind goal,
                    const std::vector<int>& ranks_per_host);

/// The schedule that a checked choice stands for; kInvalidArgument when it would be too large.
Result<plan::Schedule> build(const Choice& choice, const plan::Goal& goal,
                             const std::vector<int>& ranks_per_host);

/// Which algorithm runs when. A plain value, equal on all ranks of a job.
struct Selection {
  struct Rule {
    plan::GoalKind goal = plan::GoalKind::kAllReduce;
    Placement placement = Placement::kOneHost;
    int max_ranks = 0;            ///< 0: any
    std::uint64_t max_bytes = 0;  ///< of the whole buffer, as analysis::cost counts it; 0: any
    Choice choice;
    bool operator==(const Rule&) const = default;
  };
  /// The first that fits wins; where none fits, the shipped ones. A rule for one host fits a
  /// crowded one, too.
  std::vector<Rule> rules;
  bool operator==(const Selection&) const = default;

  /// What this library ships: measured on hosts joined by 1 Gbit/s.
  static const Selection& shipped();

  /// The rule that decides. A pure function; O(rules).
  const Rule& rule_for(plan::GoalKind goal, Placement placement, int ranks,
                       std::uint64_t bytes) const;
  Choice choose(plan::GoalKind goal, Placement placement, int ranks, std::uint64_t bytes) const {
    return rule_for(goal, placement, ranks, bytes).choice;
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
