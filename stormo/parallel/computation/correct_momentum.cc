#include <stormo/parallel/computation/correct_momentum.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stormo::parallel {
namespace {

bool sends_few(const plan::Action& a) {
  return row_of(a.kind).reduces && row_of(a.codec).has_density;
}

}  // namespace

Pass correct_momentum(codec::MomentumCorrection correction) {
  return [correction](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (std::ranges::none_of(in.actions, sends_few)) return in;
    plan::StepPlan out = in;
    out.strategy += "+correct_momentum";
    for (plan::Action& a : out.actions) {
      if (sends_few(a)) a.algorithm = codec::to_string(correction);
    }
    if (correction.clip_norm == 0) return out;
    std::erase_if(out.actions, [](const plan::Action& a) {
      return a.kind == plan::ActionKind::kNorm || a.kind == plan::ActionKind::kClip;
    });
    out.clipped = false;
    return out;
  };
}

}  // namespace stormo::parallel
