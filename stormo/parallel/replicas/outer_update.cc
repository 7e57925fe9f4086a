// An optimizer of averages.
//
// Idea: what replicas have done in a period, the difference between the parameters with which they
// began and their average, is a gradient of what they have in common. An outer optimizer with a
// momentum takes it, so that a period moves further than its average. Nothing is sent for that: all
// ranks have the average, and compute the same. Cost: two more numbers for each parameter, and an
// update in each period. Papers: J. Wang et al., "SlowMo: improving communication-efficient
// distributed SGD with slow momentum", ICLR 2020; A. Douillard et al., "DiLoCo: distributed
// low-communication training of language models", 2023.
#include <stormo/parallel/replicas/outer_update.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/base/requirements.h>
#include <stormo/plan/text/text.h>

namespace stormo::parallel {
namespace {

std::string decimal(double number) {
  std::string out;
  plan::append_real(out, number);
  return out;
}

}  // namespace

const std::vector<std::string>& outer_optimizer_names() {
  static const std::vector<std::string> names = {"none", "nesterov", "slowmo"};
  return names;
}

OuterOptimizer with_defaults(const OuterOptimizer& outer) {
  const bool slow = outer.kind == OuterOptimizer::Kind::kSlowMo;
  OuterOptimizer out = outer;
  if (out.lr == -1) out.lr = slow ? 1 : 0.7;
  if (out.momentum == -1) out.momentum = slow ? 0.5 : 0.9;
  return out;
}

std::string wrong_with(const OuterOptimizer& outer) {
  Requirements require;
  const OuterOptimizer all = with_defaults(outer);
  const bool has_numbers = outer.lr != -1 || outer.momentum != -1;
  require(outer.kind != OuterOptimizer::Kind::kNone || !has_numbers,
          "takes averages as they are: leave out outer_lr and outer_momentum, or choose "
          "outer=nesterov or slowmo");
  require(all.lr > 0,
          "has an outer_lr above 0, not " + decimal(all.lr) + ": leave it out for the usual one");
  require(all.momentum >= 0 && all.momentum < 1,
          "has an outer_momentum of at least 0 and below 1, not " + decimal(all.momentum) +
              ": leave it out for the usual one");
  return require.wrong();
}

Pass outer_update() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    const auto average = std::ranges::find_if(
        out.actions, [](const plan::Action& a) { return row_of(a.kind).averages(); });
    if (average == out.actions.end() || !is_diverged(in)) {
      return Status(Code::kBadPlan,
                    "outer_update: replicas of this plan do not diverge; apply it after "
                    "parameter_averaging");
    }
    out.strategy += "+outer_update";
    const plan::Action step = {
        .kind = plan::ActionKind::kOuterUpdate, .range = average->range, .every = average->every};
    out.actions.insert(average + 1, step);
    return out;
  };
}

}  // namespace stormo::parallel
