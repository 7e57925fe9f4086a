#include <stormo/train/world/axis_groups.h>

#include <algorithm>
#include <functional>
#include <utility>

#include <stormo/plan/project.h>

namespace stormo::train {
namespace {

/// Every group of an axis is made by all ranks, in the same order.
AxisGroups::Groups make_groups(comm::Communicator& world, const plan::Mesh& mesh,
                               const std::function<bool(const plan::Axis&)>& wanted) {
  if (mesh.size() != world.size()) {
    throw Error(Status(Code::kBadPlan, "the plan is for " + std::to_string(mesh.size()) +
                                           " rank(s), the job has " + std::to_string(world.size()) +
                                           "; compose it for these ranks (parallel::plan_for)"));
  }
  AxisGroups::Groups mine;
  for (const plan::Axis& axis : mesh.axes) {
    if (!wanted(axis) || axis.size == world.size()) continue;
    for (Rank first = 0; first < world.size(); ++first) {
      const std::vector<Rank> members = mesh.group(first, axis.name);
      if (members.front() != first) continue;
      auto made = world.subgroup(members, Deadline::never()).take_or_throw();
      if (made != nullptr) mine[axis.name] = std::move(made);
    }
  }
  return mine;
}

}  // namespace

AxisGroups::AxisGroups(comm::Communicator& world, const plan::StepPlan& plan)
    : AxisGroups(world, plan.mesh, make_groups(world, plan.mesh, [&plan](const plan::Axis& axis) {
                   return axis.name == plan::kStageAxis ||
                          std::ranges::any_of(plan.actions, [&](const plan::Action& a) {
                            return a.axes == std::vector<std::string>{axis.name};
                          });
                 })) {}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::Mesh& mesh)
    : AxisGroups(world, mesh, make_groups(world, mesh, [](const plan::Axis&) { return true; })) {}

AxisGroups::AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups)
    : world_(world), mesh_(std::move(mesh)), groups_(std::move(groups)) {}

Result<comm::Communicator*> AxisGroups::over(const std::vector<std::string>& axes) const {
  int size = 1;
  std::string widest;
  for (const std::string& name : axes) {
    const int index = mesh_.find(name);
    if (index < 0) return invalid_argument("axis '" + name + "' is not in the mesh");
    const int ranks = mesh_.axes[static_cast<std::size_t>(index)].size;
    size *= ranks;
    if (widest.empty() || ranks > 1) widest = name;
  }
  if (size == world_.size()) return &world_;
  const auto group = groups_.find(widest);
  if (group != groups_.end() && group->second->size() == size) return group->second.get();
  return Status(Code::kBadPlan, "no group over some axes of a larger mesh: name one, or all");
}

std::uint64_t AxisGroups::bytes_sent() const {
  std::uint64_t sent = world_.bytes_sent();
  for (const auto& [axis, group] : groups_) sent += group->bytes_sent();
  return sent;
}

}  // namespace stormo::train
