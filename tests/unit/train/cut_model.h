#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <stormo/parallel/strategy/strategy.h>

#include "tests/unit/train/plan_run.h"

// Ways to cut a model over ranks, and runs of them.
namespace stormo::test {

struct CutWay {
  std::string name;
  std::vector<int> hosts;  ///< ranks of each
  parallel::Strategy strategy;
  parallel::StepOptions step = {};
  bool tied = false;  ///< of a gpt: the head has the weight of the embedding
  train::OptimizerOptions::Kind optimizer = train::OptimizerOptions::Kind::kAdamW;
};
inline std::ostream& operator<<(std::ostream& out, const CutWay& way) { return out << way.name; }

inline PlanRun run_of(const CutWay& way, const Problem& problem,
                      const std::vector<Batch>& batches) {
  train::TrainerOptions options;
  options.optimizer = {.kind = way.optimizer, .lr = 0.01};
  options.clip_norm = way.step.clip ? 0.5 : 0;
  options.strategy.outer = way.strategy.outer;
  parallel::StepOptions step = way.step;
  step.trust_ratios = optim::needs_norms(way.optimizer);
  return {.plan = parallel::plan_for(way.strategy, problem.model(3)->split_shape(),
                                     {.ranks_per_host = way.hosts}, step)
                      .take_or_throw(),
          .hosts = way.hosts,
          .problem = problem,
          .batches = batches,
          .options = options};
}

}  // namespace stormo::test
