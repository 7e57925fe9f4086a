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
                               const std::vector<AxisGroups::Key>& wanted) {
  if (mesh.size() != world.size()) {
    throw Error(Status(Code::kBadPlan, "the plan is for " + std::to_string(mesh.size()) +
                                           " rank(s), the job has " + std::to_string(world.size()) +
                                           "; compose it for these ranks (parallel::plan_for)"));
  }
  AxisGroups::Groups mine;
  std::set<AxisGroups::Key> known;
  for (const auto& [axes, stages] : wanted) {
    const AxisGroups::Key key(AxisGroups::key_of(mesh, axes).take_or_throw(), stages);
    if (!known.insert(key).second) continue;
    for (Rank first = 0; first < world.size(); ++first) {
      const std::vector<Rank> members = AxisGroups::members(mesh, first, key);
      if (std::ssize(members) == world.size()) break;
      if (members.front() != first) continue;
      auto made = world.subgroup(members, Deadline::never()).take_or_throw();
      if (made != nullptr) mine[key] = std::move(made);
    }
  }
  return mine;
}

std::vector<AxisGroups::Key> used_axes(const plan::StepPlan& plan) {
  std::vector<AxisGroups::Key> out = AxisGroups::of_tied(plan);
  const auto add = [&](Axes axes) { out.emplace_back(std::move(axes), std::vector<int>()); };
  for (const std::string& axis : model_axes(plan.mesh)) add({axis});
  if (!model_axes(plan.mesh).empty() && !data_axes(plan.mesh).empty()) add(data_axes(plan.mesh));
  if (plan.mesh.find(plan::kContextAxis) >= 0) add({plan::kContextAxis});
  for (const std::string& axis : place_axes(plan.mesh)) add({axis});
  if (place_axes(plan.mesh).size() > 1) add(place_axes(plan.mesh));
  for (const plan::Action& a : plan.actions) {
    const bool with_servers = row_of(a.kind).takes_from(plan::Placement::kRemote) ||
                              places(a, plan::Value::kGradients, plan::Placement::kRemote);
    if (!a.axes.empty() && !with_servers) add(a.axes);
  }
  return out;
}

std::vector<AxisGroups::Key> each_axis(const plan::Mesh& mesh) {
  std::vector<AxisGroups::Key> out;
  for (const plan::Axis& axis : mesh.axes) out.push_back({{axis.name}, {}});
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

std::vector<AxisGroups::Key> AxisGroups::of_tied(const plan::StepPlan& plan) {
  std::vector<Key> out;
  const plan::Stages stages(plan.model);
  for (int i = 0; const plan::ParameterShape* p : flatten(plan.model)) {
    const std::vector<int>& readers = stages.of_parameter(i++);
    const bool some = readers.size() > 1 && std::ssize(readers) < num_stages(plan.mesh);
    Key key({plan::kStageAxis}, readers);
    if (some && p->trainable && std::ranges::count(out, key) == 0) out.push_back(std::move(key));
  }
  return out;
}

std::vector<Rank> AxisGroups::members(const plan::Mesh& mesh, Rank rank, const Key& key) {
  std::vector<Rank> out = mesh.group(rank, key.first);
  std::erase_if(out, [&](Rank r) {
    return !key.second.empty() && std::ranges::count(key.second, stage_of(mesh, r)) == 0;
  });
  return out;
}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::StepPlan& plan)
    : AxisGroups(world, plan.mesh, make_groups(world, plan.mesh, used_axes(plan))) {}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::Mesh& mesh)
    : AxisGroups(world, mesh, make_groups(world, mesh, each_axis(mesh))) {}

AxisGroups::AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups)
    : world_(world), mesh_(std::move(mesh)), groups_(std::move(groups)) {}

Result<comm::Communicator*> AxisGroups::over(const std::vector<std::string>& axes,
                                             const std::vector<int>& stages) const {
  STORMO_ASSIGN_OR_RETURN(Axes over, key_of(mesh_, axes));
  const bool all = std::ssize(stages) == num_stages(mesh_);
  const Key key(std::move(over), all ? std::vector<int>() : stages);
  if (std::ssize(members(mesh_, world_.rank(), key)) == world_.size()) return &world_;
  const auto group = groups_.find(key);
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
  for (const auto& [key, group] : groups_) group->set_sink(sink);
}

std::uint64_t AxisGroups::bytes_sent() const {
  std::uint64_t sent = world_.bytes_sent();
  for (const auto& [key, group] : groups_) sent += group->bytes_sent();
  return sent;
}

}  // namespace stormo::train
