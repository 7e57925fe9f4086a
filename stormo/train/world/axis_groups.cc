#include <stormo/train/world/axis_groups.h>

#include <algorithm>
#include <set>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/plan/assigned/assigned_plan.h>
#include <stormo/plan/project.h>

namespace stormo::train {
namespace {

using Axes = std::vector<std::string>;

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
    : AxisGroups(world, plan.mesh, std::nullopt, used_axes(plan)) {}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::StepPlan& plan, MeshRanks ranks)
    : AxisGroups(world, plan.mesh, std::move(ranks), used_axes(plan)) {}

AxisGroups::AxisGroups(comm::Communicator& world, const plan::Mesh& mesh)
    : AxisGroups(world, mesh, std::nullopt, each_axis(mesh)) {}

AxisGroups::AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups)
    : world_(world), mesh_(std::move(mesh)), groups_(std::move(groups)) {}

// Every group is made by all ranks, in the same order.
AxisGroups::AxisGroups(comm::Communicator& world, plan::Mesh mesh, std::optional<MeshRanks> some,
                       const std::vector<Key>& wanted)
    : world_(world), mesh_(std::move(mesh)), some_(std::move(some)) {
  const int ranks = some_ ? static_cast<int>(some_->numbers.size()) : mesh_.size();
  if (ranks != world.size()) {
    throw Error(Status(Code::kBadPlan, "the plan is for " + std::to_string(ranks) +
                                           " rank(s), the job has " + std::to_string(world.size()) +
                                           "; compose it for these ranks (parallel::plan_for)"));
  }
  std::set<Key> known;
  for (const auto& [axes, stages] : wanted) {
    const Key key = normalized(axes, stages).take_or_throw();
    if (!known.insert(key).second) continue;
    for (const std::vector<Rank>& members : groups_of(key)) {
      if (std::ssize(members) == world.size()) continue;
      auto made = world.subgroup(members, Deadline::never()).take_or_throw();
      if (made != nullptr) groups_[key] = std::move(made);
    }
  }
}

Rank AxisGroups::rank() const { return some_ ? some_->numbers[at(world_.rank())] : world_.rank(); }

Result<AxisGroups::Key> AxisGroups::normalized(const std::vector<std::string>& axes,
                                               const std::vector<int>& stages) const {
  STORMO_ASSIGN_OR_RETURN(Axes over, key_of(mesh_, axes));
  const bool all = std::ssize(stages) == num_stages(mesh_);
  return Key(std::move(over), all ? std::vector<int>() : stages);
}

/// All groups of this kind, by ranks of the job.
std::vector<std::vector<Rank>> AxisGroups::groups_of(const Key& key) const {
  std::vector<std::vector<Rank>> out;
  if (!some_) {
    for (Rank first = 0; first < mesh_.size(); ++first) {
      std::vector<Rank> group = members(mesh_, first, key);
      if (!group.empty() && group.front() == first) out.push_back(std::move(group));
    }
    return out;
  }
  std::vector<std::vector<Rank>> left(at(num_stages(mesh_)));
  std::vector<Rank> numbers = some_->numbers;
  std::ranges::sort(numbers);
  for (const Rank r : numbers) left[at(stage_of(mesh_, r))].push_back(r);
  const bool over_stages = std::ranges::count(key.first, plan::kStageAxis) > 0;
  if (over_stages && key.first.size() > 1) {
    out = {std::move(numbers)};
  } else if (over_stages) {
    std::vector<int> stages = key.second;
    for (int s = 0; key.second.empty() && s < num_stages(mesh_); ++s) stages.push_back(s);
    out = plan::groups_over_stages(stages, left);
  } else {
    out = std::move(left);
  }
  for (std::vector<Rank>& group : out) {
    for (Rank& r : group) r = rank_in_job(r);
    std::ranges::sort(group);
  }
  return out;
}

/// Of this rank.
std::vector<Rank> AxisGroups::members_here(const Key& key) const {
  for (std::vector<Rank>& group : groups_of(key)) {
    if (std::ranges::count(group, world_.rank()) > 0) return std::move(group);
  }
  return {};
}

Rank AxisGroups::rank_in_job(Rank number) const {
  return static_cast<Rank>(std::ranges::find(some_->numbers, number) - some_->numbers.begin());
}

Result<comm::Communicator*> AxisGroups::over(const std::vector<std::string>& axes,
                                             const std::vector<int>& stages) const {
  STORMO_ASSIGN_OR_RETURN(const Key key, normalized(axes, stages));
  const std::size_t size =
      some_ ? members_here(key).size() : members(mesh_, world_.rank(), key).size();
  if (size == at(world_.size())) return &world_;
  const auto group = groups_.find(key);
  if (group != groups_.end()) return group->second.get();
  return Status(Code::kBadPlan,
                "no group over these axes was made: an action of the plan names them");
}

Result<comm::Communicator*> AxisGroups::link() const {
  if (some_) return &world_;
  return over({plan::kStageAxis});
}

Rank AxisGroups::rank_in_link(Rank number) const {
  return some_ ? rank_in_job(number) : stage_of(mesh_, number);
}

Rank AxisGroups::first_of_stage(int stage) const {
  for (Rank number = 0; number < mesh_.size(); ++number) {
    if (stage_of(mesh_, number) != stage) continue;
    if (!some_) return number;
    const Rank here = rank_in_job(number);
    if (here < world_.size() && some_->has_state[at(here)]) return here;
  }
  throw Error(Status(Code::kPeerLost, "no rank has the state of stage " + std::to_string(stage)));
}

Result<AxisGroups::Source> AxisGroups::source_of(int stage) const {
  if (some_) return Source{&world_, first_of_stage(stage)};
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const pipeline, over({plan::kStageAxis}));
  return Source{pipeline, stage};
}

bool AxisGroups::is_source() const {
  if (!some_) return copy_of_model(mesh_, world_.rank()).index == 0;
  return first_of_stage(stage_of(mesh_, rank())) == world_.rank();
}

bool AxisGroups::gives(const std::vector<int>& stages) const {
  if (!some_) return true;
  const Key key = normalized({plan::kStageAxis}, stages).take_or_throw();
  const auto is_of_stage = [&](Rank r) {
    return stage_of(mesh_, some_->numbers[at(r)]) == stage_of(mesh_, rank());
  };
  const std::vector<Rank> group = members_here(key);
  return *std::ranges::find_if(group, is_of_stage) == world_.rank();
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
