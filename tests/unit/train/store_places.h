#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include <stormo/parallel/computation/commit_before_update.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>

#include "tests/unit/train/plan_run.h"

// Stores of different kinds, on different hosts, that train the same small chain.
namespace stormo::test {

using Passes = std::vector<parallel::Pass>;
using Hosts = std::vector<int>;

/// A store, by the strategy that has it.
struct Layout {
  std::string name;
  std::function<Passes(int hosts, int local)> passes;
};

inline std::vector<Layout> layouts() {
  std::vector<Layout> out = {
      {"replicated",
       [](int hosts, int local) { return Passes{parallel::mirrored(hosts * local)}; }},
      {"host_shared",
       [](int hosts, int local) { return Passes{parallel::host_shared(hosts, local)}; }}};
  out.push_back(
      {"host_copy", [](int hosts, int local) {
         return Passes{parallel::host_shared(hosts, local), parallel::commit_before_update()};
       }});
  for (const int stage : {1, 2, 3}) {
    out.push_back({"sharded" + std::to_string(stage), [stage](int hosts, int local) {
                     return Passes{parallel::sharded({.stage = stage, .ranks = hosts * local})};
                   }});
  }
  out.push_back(
      {"hybrid", [](int hosts, int local) {
         return Passes{parallel::mirrored(hosts), parallel::sharded({.stage = 3, .ranks = local})};
       }});
  out.push_back({"staged", [](int hosts, int local) {
                   const int ranks = hosts * local;
                   if (ranks == 1) return Passes{};
                   Passes passes = {parallel::pipeline({.schedule = parallel::gpipe()})};
                   if (ranks > 2) passes.push_back(parallel::mirrored(ranks / 2));
                   return passes;
                 }});
  return out;
}

/// A store somewhere.
struct Place {
  Layout layout;
  Hosts hosts;
  int ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
  Passes passes() const { return layout.passes(static_cast<int>(hosts.size()), hosts.front()); }
};

inline std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.layout.name;
}

/// The second of three layers is not trained.
inline Problem problem() { return with_frozen_segment(mlp_problem(), 1); }

inline plan::StepPlan plan_of(const Passes& before, const Passes& passes) {
  return parallel::compose(
             parallel::compose(parallel::one_device(problem().model(3)->shape()), before)
                 .take_or_throw(),
             passes)
      .take_or_throw();
}

/// With four ranks and 3 rows one of them has none.
inline std::vector<Batch> batches() {
  std::vector<Batch> out = problem().batches(4, 13);
  out[1] = out[1].rows(0, 3);
  return out;
}

inline PlanRun run_of(const Place& place, const Passes& before = {}) {
  PlanRun run{.plan = plan_of(before, place.passes()),
              .hosts = place.hosts,
              .problem = problem(),
              .batches = batches(),
              .options = {}};
  // so large an epsilon that it divides by no small numbers
  run.options.optimizer = {
      .kind = train::OptimizerOptions::Kind::kAdamW, .lr = 0.01, .epsilon = 1e-2};
  return run;
}

}  // namespace stormo::test
