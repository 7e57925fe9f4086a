#pragma once

#include <cstdint>
#include <string>

#include <stormo/plan/topology.h>

#include "plan_options.h"

namespace stormo::cli {

struct RankRange {
  int first = 1;
  int last = 1;
};

/// "4" or "1..33".
Result<RankRange> parse_ranks(const std::string& text);

/// The plan that the options name: a builder's, a strategy's for a sample model, or a file's.
Result<Plan> load_plan(const PlanOptions& o);

/// A schedule that may be executed. One from a file is verified; tests verify the builders.
Result<plan::Schedule> load_collective(const PlanOptions& o);

/// --bytes, refused when the plan would move more than can be counted.
Result<std::int64_t> buffer_bytes(const PlanOptions& o, const plan::Schedule& s);

/// --topology, or --hosts with shared memory inside and gigabit Ethernet between.
Result<plan::Topology> load_topology(const PlanOptions& o, int ranks);

/// --ranks as one number.
Result<int> single_ranks(const std::string& text);

}  // namespace stormo::cli
