#include <stormo/parallel/no_axes.h>

namespace stormo::parallel {

Status check_no_axes(const plan::StepPlan& plan, const std::string& pass) {
  if (plan.mesh.axes.empty()) return {};
  return Status(Code::kBadPlan,
                pass + ": the mesh has axes already; apply it once, and no other strategy");
}

}  // namespace stormo::parallel
