#include <stormo/train/world/axis_groups.h>

#include <algorithm>
#include <set>
#include <utility>

#include <stormo/plan/project.h>

namespace stormo::train {
namespace {

using Axes = std::vector<std::string>;

/// Every group is made by all ranks, in the same order.
AxisGroups::Groups make_groups(comm::Communicator& world, const plan::Mesh& mesh,
                               const std::vector<Axes>& wanted) {
  if (mesh.size() != world.size()) {
    throw Error(Status(Code::kBadPlan, "the plan is for " + std::to_string(mesh.size()) +
                                           " rank(s), the job has " + std::to_string(world.size()) +
                                           "; compose it for these ranks (parallel::plan_for)"));
  }
  AxisGroups::Groups mine;
  std::set<Axes> known;
  for (const Axes& axes : wanted) {
    const Axes over = AxisGroups::key_of(mesh, axes).take_or_throw();
    if (!known.insert(over).second) continue;
    for (Rank first = 0; first < world.size(); ++first) {
      const std::vector<Rank> members = mesh.group(first, over);
      if (std::ssize(members) == world.size()) break;
      if (members.front() != first) continue;
      auto made = world.subgroup(members, Deadline::never()).take_or_throw();
      if (made != nullptr) mine[over] = std::move(made);
    }
  }
  return mine;
}

std::vector<Axes> used_axes(const plan::StepPlan& plan) {
  std::vector<Axes> out;
  for (const std::string& axis : model_axes(plan.mesh)) out.push_back({axis});
  if (!out.empty() && !data_axes(plan.mesh).empty()) out.push_back(data_axes(plan.mesh));
  if (plan.mesh.find(plan::kContextAxis) >= 0) out.push_back({plan::kContextAxis});
  for (const std::string& axis : place_axes(plan.mesh)) out.push_back({axis});
  if (place_axes(plan.mesh).size() > 1) out.push_back(place_axes(plan.mesh));
  for (const plan::Action& a : plan.actions) {
    const bool with_servers = row_of(a.kind).takes_from(plan::Placement::kRemote) ||
                              places(a, plan::Value::kGradients, plan::Placement::kRemote);
    if (!a.axes.empty() && !with_servers) out.push_back(a.axes);
  }
  return out;
}

std::vector<Axes> each_axis(const plan::Mesh& mesh) {
  std::vector<Axes> out;
  for (const plan::Axis& axis : mesh.axes) out.push_back({axis.name});
  return out;
}

}  // namespace

Result<std::vector<std::string>> AxisGroups::key_of(const plan::Mesh& mesh,
                                                    const std::vector<std::string>& axes) {
  Axes out;
  for (const std::string& name : axes) {
    if (mesh.find(name) < 0) return invalid_argument("axis '" + name + "' is not in the mesh");
  }
  for (const plan::Axis& axis : mesh.axes) {
    if (axis.size > 1 && std::ranges::count(axes, axis.name) > 0) out.push_back(axis.name);
  }
  return out;
}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::StepPlan& plan)
    : AxisGroups(world, plan.mesh, make_groups(world, plan.mesh, used_axes(plan))) {}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::Mesh& mesh)
    : AxisGroups(world, mesh, make_groups(world, mesh, each_axis(mesh))) {}

AxisGroups::AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups)
    : world_(world), mesh_(std::move(mesh)), groups_(std::move(groups)) {}

Result<comm::Communicator*> AxisGroups::over(const std::vector<std::string>& axes) const {
  STORMO_ASSIGN_OR_RETURN(const Axes over, key_of(mesh_, axes));
  int size = 1;
  for (const std::string& axis : over) {
    size *= mesh_.axes[static_cast<std::size_t>(mesh_.find(axis))].size;
  }
  if (size == world_.size()) return &world_;
  const auto group = groups_.find(over);
  if (group != groups_.end()) return group->second.get();
  return Status(Code::kBadPlan,
                "no group over these axes was made: an action of the plan names them");
}

Result<std::optional<tensor::Grid>> AxisGroups::grid() const {
  const Axes axes = place_axes(mesh_);
  if (axes.empty()) return std::optional<tensor::Grid>();
  tensor::Line rows, columns;
  for (const std::string& axis : axes) {
    STORMO_ASSIGN_OR_RETURN(comm::Communicator* const line, over({axis}));
    (axis == plan::kRowsAxis ? rows : columns) = tensor::Line(*line);
  }
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const all, over(axes));
  return std::optional<tensor::Grid>(std::in_place, rows, columns, *all);
}

void AxisGroups::set_sink(Sink* sink) const {
  world_.set_sink(sink);
  for (const auto& [axes, group] : groups_) group->set_sink(sink);
}

std::uint64_t AxisGroups::bytes_sent() const {
  std::uint64_t sent = world_.bytes_sent();
  for (const auto& [axes, group] : groups_) sent += group->bytes_sent();
  return sent;
}

}  // namespace stormo::train
