// Populations: ranks that train models of their own, and learn from those of others.
//
// Idea: members begin with different parameters and train on different samples. Now and then they
// send their models to others. In a tournament (LTFB) who gets one judges it and its own on samples
// with which it does not train, and goes on with the better one. So good models spread, and nobody
// has to know all of them; with one peer, who is 1, 2, 4, ... ranks away in turn, the best model
// can have reached all members after log2(N) tournaments. In codistillation members keep their
// models, and learn from predictions of the others, for which copies that are some steps old will
// do. Cost of an exchange and rank: parameters, for a tournament with the optimizer's state, to
// each neighbour. Besides, a tournament has a forward of the samples by which members judge for
// each model, and codistillation in each step a forward of the batch for each copy. Papers:
// S. Jacobs et al., "Towards scalable parallel training of deep neural networks", MLHPC 2017;
// R. Anil et al., "Large scale distributed neural network training through online distillation",
// ICLR 2018.
#include <stormo/parallel/replicas/population.h>

#include <algorithm>

namespace stormo::parallel {
namespace {

Pass meeting(plan::ActionKind kind, const std::string& topology) {
  return [kind, topology](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    const std::string name(to_string(kind));
    plan::StepPlan out = in;
    out.strategy += "+" + name;
    const auto average = std::ranges::find_if(out.actions, [](const plan::Action& a) {
      return row_of(a.kind).averages() && row_of(a.kind).averages_state;
    });
    if (average == out.actions.end() || !is_diverged(in) || average->axes.size() != 1) {
      return Status(Code::kBadPlan,
                    name +
                        ": the plan has no average of replicas of one rank and of their state; "
                        "apply it after parameter_averaging");
    }
    average->kind = kind;
    average->algorithm = topology;
    return out;
  };
}

}  // namespace

Pass tournament(const std::string& topology) {
  return meeting(plan::ActionKind::kTournament, topology);
}

Pass codistillation(const std::string& topology) {
  return meeting(plan::ActionKind::kExchangeModels, topology);
}

}  // namespace stormo::parallel
