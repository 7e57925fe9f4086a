#include <stormo/parallel/computation/reduce_with.h>

#include <utility>

namespace stormo::parallel {

ReductionForm in_one_order(Codec codec) {
  return {.codec = codec,
          .all_reduce = "canonical_all_reduce",
          .reduce_scatter = "canonical_reduce_scatter"};
}

void set_form(plan::Action& action, const ReductionForm& form) {
  if (row_of(action.kind).has_codec()) action.codec = form.codec;
  if (!row_of(action.kind).reduces) return;
  const bool scatters = places(action, plan::Value::kGradients, plan::Placement::kShard);
  action.algorithm = scatters ? form.reduce_scatter : form.all_reduce;
}

Pass reduce_with(ReductionForm form) {
  return [form = std::move(form)](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    for (plan::Action& a : out.actions) {
      const bool in_replica =
          is_diverged(in) && places(a, plan::Value::kGradients, plan::Placement::kReplicate);
      if (!in_replica) set_form(a, form);
    }
    if (out != in) out.strategy += "+reduce_with";
    return out;
  };
}

}  // namespace stormo::parallel
