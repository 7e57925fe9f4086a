#include <stormo/plan/check/adasum.h>

#include <cstddef>
#include <string>

#include <stormo/plan/adasum.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

/// Its ranks have copies of the model, and no others have parts of their gradients.
bool is_of_replicas(const StepPlan& p, const Action& a) {
  for (std::size_t i = 0; i < p.mesh.axes.size(); ++i) {
    const std::string& axis = p.mesh.axes[i].name;
    const bool own = a.axes.size() == 1 && axis == a.axes.front();
    if (!own && axis != kStageAxis) return false;
    if (own && (p.parameters[i] != Placement::kReplicate ||
                p.optimizer_state[i] != Placement::kReplicate)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Status check_adasum(const StepPlan& p, const Action& a) {
  if (!places(a, Value::kGradients, Placement::kReplicate) || !is_of_replicas(p, a)) {
    return bad("combines by ", kAdasum, " gradients of whole replicas, over the one axis that is ",
               "not '", kStageAxis, "'");
  }
  if (a.codec != Codec::kNone) {
    return bad("combines gradients by ", kAdasum, " as they are, and takes no codec");
  }
  const auto shapes = flatten(p.model);
  for (int i = a.range.first; i <= a.range.last; ++i) {
    const ParameterShape& own = *shapes[static_cast<std::size_t>(i)];
    if (!own.trainable) continue;
    if (own.sparse) {
      return bad("combines by ", kAdasum, " dense gradients, and that of '", own.name,
                 "' is sparse");
    }
    if (is_floating(own.dtype) && own.dtype != DType::kFloat64) continue;
    return bad("combines by ", kAdasum, " gradients of float32 or 16 bits, and that of '", own.name,
               "' is of ", own.dtype, "; take float32 parameters, or add gradients up");
  }
  return {};
}

}  // namespace stormo::plan
