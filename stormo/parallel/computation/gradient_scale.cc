#include <stormo/parallel/computation/gradient_scale.h>

#include <algorithm>
#include <string>

namespace stormo::parallel {
namespace {

using plan::ActionKind;

/// `kind` before the first update or push, and a norm before it unless there is one.
Result<plan::StepPlan> insert(const plan::StepPlan& in, ActionKind kind, const std::string& name) {
  plan::StepPlan out = in;
  out.strategy += "+" + name;
  const bool has_norm = std::ranges::any_of(
      out.actions, [](const plan::Action& a) { return makes(a, plan::Value::kNorm); });
  auto update = std::ranges::find_if(out.actions, [](const plan::Action& a) {
    return row_of(a.kind).needs.has(plan::Value::kClipped);
  });
  if (update == out.actions.end()) {
    return Status(Code::kBadPlan, name + ": the plan has no update");
  }
  update = out.actions.insert(update, {.kind = kind});
  if (!has_norm) out.actions.insert(update, {.kind = ActionKind::kNorm});
  return out;
}

}  // namespace

Pass scale_loss() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (in.scaled_loss) {
      return Status(Code::kBadPlan, "scale_loss: the loss is scaled already; apply it once");
    }
    STORMO_ASSIGN_OR_RETURN(plan::StepPlan out, insert(in, ActionKind::kUnscale, "scale_loss"));
    out.scaled_loss = true;
    return out;
  };
}

Pass clip_gradients() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (in.clipped) {
      return Status(Code::kBadPlan, "clip_gradients: they are clipped already; apply it once");
    }
    STORMO_ASSIGN_OR_RETURN(plan::StepPlan out, insert(in, ActionKind::kClip, "clip_gradients"));
    out.clipped = true;
    return out;
  };
}

}  // namespace stormo::parallel
