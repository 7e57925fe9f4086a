#include <stormo/train/store/whole_norms.h>

#include <set>
#include <span>
#include <vector>

#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/plan/project.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

WholeNorms whole_norms(const AxisGroups& groups, const plan::StepPlan& plan) {
  WholeNorms out;
  const std::vector<std::string> axes = parallel::owner_axes(plan);
  if (!axes.empty()) {
    out.sum = [&groups, axes](std::span<double> sums) -> Status {
      STORMO_ASSIGN_OR_RETURN(comm::Communicator* const owners, groups.over(axes));
      return add_up(*owners, sums);
    };
  }
  std::set<std::string> of_others;
  if (slice_of(plan.mesh, groups.rank()).index > 0) {
    for (const plan::ParameterShape* p : flatten(plan.model)) {
      if (p->split.units == 0) of_others.insert(p->name);
    }
  }
  out.counts = [of_others](const std::string& name) { return !of_others.contains(name); };
  return out;
}

}  // namespace stormo::train
