// Decentralised data parallelism without steps in common.
//
// Idea: each rank trains at its own speed, and after some of its steps takes the mean of its
// parameters and those of one other rank, which answers beside its own steps. So nobody waits for a
// slow rank, and the sum of all parameters is kept by each exchange. Cost per exchange: the
// parameters once in each direction, whatever the number of ranks is. Paper: X. Lian et al.,
// "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (AD-PSGD).
#include <stormo/parallel/replicas/pairs.h>

#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/plan/limits.h>

namespace stormo::parallel {

// The average stands in steps that close, and in no other.
Pass pairs(int ranks) {
  return [average = parameter_averaging(ranks, plan::kMaxPeriod, /*state=*/false)](
             const plan::StepPlan& in) -> Result<plan::StepPlan> {
    STORMO_ASSIGN_OR_RETURN(plan::StepPlan out, average(in));
    out.strategy += "+pairs";
    return out;
  };
}

}  // namespace stormo::parallel
