#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cli/plan/options.h>
#include <stormo/plan/topology.h>

namespace stormo::cli {

struct RankRange {
  int first = 1;
  int last = 1;
};

/// "4" or "1..33".
Result<RankRange> parse_ranks(const std::string& text);

/// The plan that the options name: a builder's, a strategy's for a sample model, or a file's.
Result<Plan> load_plan(const PlanOptions& o);

/// Whether a name is that of a recipe's file.
inline bool is_recipe(std::string_view name) { return name.ends_with(".toml"); }
/// The step of the recipe that the options name, on hosts with that many ranks; reads its data.
/// With --measured it trains a few steps.
Result<StepInput> load_recipe_step(const PlanOptions& o, const std::vector<int>& ranks_per_host);

/// Where the recipe leaves a key open ("auto"), says what each of its values takes, and which one
/// ranks with these links would choose. False: it does not, and nothing is said.
Result<bool> simulate_open_recipe(const PlanOptions& o);

/// `s`, loaded as the options say, if it may be executed. One from a file is verified; tests verify
/// the builders.
Result<plan::Schedule> executable(const PlanOptions& o, plan::Schedule s);

/// --bytes, refused when the plan would move more than can be counted.
Result<std::int64_t> buffer_bytes(const PlanOptions& o, const plan::Schedule& s);

/// --topology, or --hosts with shared memory inside and gigabit Ethernet between.
Result<plan::Topology> load_topology(const PlanOptions& o, int ranks);

/// --ranks as one number.
Result<int> single_ranks(const std::string& text);

}  // namespace stormo::cli
