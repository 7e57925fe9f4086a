#include <stormo/parallel/axes.h>

#include <stormo/plan/limits.h>

namespace stormo::parallel {

Status check_no_axes(const plan::StepPlan& plan, const std::string& pass) {
  if (plan.mesh.axes.empty()) return {};
  return Status(Code::kBadPlan,
                pass + ": the mesh has axes already; apply it once, and no other strategy");
}

Status add_inner_axis(plan::StepPlan& plan, const std::string& pass, const plan::Axis& axis,
                      plan::Placement placement) {
  if (axis.size < 2 || axis.size > plan::kMaxRanks) {
    return invalid_argument(pass + ": " + std::to_string(axis.size) + " ranks; give at least 2");
  }
  if (plan.mesh.find(axis.name) >= 0) {
    return Status(Code::kBadPlan,
                  pass + ": the mesh already has an axis '" + axis.name + "'; apply it once");
  }
  plan.mesh.axes.push_back(axis);
  for (auto* rest : {&plan.parameters, &plan.frozen, &plan.optimizer_state}) {
    rest->push_back(placement);
  }
  return {};
}

}  // namespace stormo::parallel
