#include <stormo/plan/project.h>

#include <algorithm>

namespace stormo::plan {

namespace {

/// The rank's position in the grid of some axes.
template <class Wanted>
Part part_over(const Mesh& mesh, Rank rank, const Wanted& wanted) {
  Part out;
  const std::vector<int> at = mesh.coordinates(rank);
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (!wanted(mesh.axes[axis].name)) continue;
    out.index = out.index * mesh.axes[axis].size + at[axis];
    out.parts *= mesh.axes[axis].size;
  }
  return out;
}

bool cuts_model(const std::string& axis) { return axis == kStageAxis || axis == kTensorAxis; }

bool cuts_places(const std::string& axis) { return axis == kRowsAxis || axis == kColumnsAxis; }

bool cuts_samples(const std::string& axis) { return axis == kContextAxis || cuts_places(axis); }

/// Names of the axes that cut the model, or of the others.
std::vector<std::string> axes_of(const Mesh& mesh, bool cut) {
  std::vector<std::string> out;
  for (const Axis& axis : mesh.axes) {
    if (cuts_model(axis.name) == cut) out.push_back(axis.name);
  }
  return out;
}

Part stage_part(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kStageAxis; });
}

}  // namespace

int num_stages(const Mesh& mesh) { return stage_part(mesh, 0).parts; }

int stage_of(const Mesh& mesh, Rank rank) { return stage_part(mesh, rank).index; }

Part data_part(const Mesh& mesh, Rank rank) {
  return part_over(
      mesh, rank, [](const std::string& axis) { return !cuts_model(axis) && !cuts_samples(axis); });
}

Part sample_part(const Mesh& mesh, Rank rank) { return part_over(mesh, rank, cuts_samples); }

Part context_part(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kContextAxis; });
}

Part rows_part(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kRowsAxis; });
}

Part columns_part(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kColumnsAxis; });
}

Part worker_part(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kWorkerAxis; });
}

std::vector<std::string> place_axes(const Mesh& mesh) {
  std::vector<std::string> out;
  for (const Axis& axis : mesh.axes) {
    if (cuts_places(axis.name)) out.push_back(axis.name);
  }
  return out;
}

Part copy_of_model(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return !cuts_model(axis); });
}

Part slice_of(const Mesh& mesh, Rank rank) {
  return part_over(mesh, rank, [](const std::string& axis) { return axis == kTensorAxis; });
}

std::vector<std::string> model_axes(const Mesh& mesh) { return axes_of(mesh, true); }

std::vector<std::string> data_axes(const Mesh& mesh) { return axes_of(mesh, false); }

bool averages_some(const StepPlan& plan, const Action& a) {
  if (!row_of(a.kind).averages()) return false;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const bool is_own = plan.parameters[i] == Placement::kDiverged;
    if (is_own && std::ranges::count(a.axes, plan.mesh.axes[i].name) == 0) return true;
  }
  return false;
}

std::string averaging_algorithm(const Mesh& mesh) {
  return model_axes(mesh).empty() ? "" : "canonical_all_reduce";
}

int random_stream(const StepPlan& plan, Rank rank) {
  // what is behind the sum over places is the same on all ranks of a grid, with its dropout
  const auto differs = [&](const std::string& axis) {
    return !cuts_places(axis) && (plan.sequence_parallel || axis != kTensorAxis);
  };
  return part_over(plan.mesh, rank, differs).index;
}

int parts_of_output(const StepPlan& plan, int segment) {
  const bool in_parts = plan.sequence_parallel ||
                        plan.model.segments[static_cast<std::size_t>(segment)].splits_output;
  const bool in_places = segment + 1 < segments_of_places(plan.model);
  const Part places = part_over(plan.mesh, 0, cuts_places);
  return (in_parts ? slice_of(plan.mesh, 0).parts : 1) * context_part(plan.mesh, 0).parts *
         (in_places ? places.parts : 1);
}

bool is_boundary(const ModelShape& model, int segment) {
  const auto& all = model.segments;
  const auto at = static_cast<std::size_t>(segment);
  return segment >= 0 && at + 1 < all.size() && all[at].stage != all[at + 1].stage;
}

MoveEnds ends_of(const Action& move) {
  if (row_of(move.kind).makes.has(Value::kOutputGradient))
    return {move.range.last, move.range.first};
  return {move.range.first, move.range.last};
}

Stages::Stages(const ModelShape& model) {
  for (const SegmentShape& s : model.segments) {
    segments_.push_back(s.stage);
    for (const int b : s.borrowed) {
      std::vector<int>& readers = parameters_[static_cast<std::size_t>(b)];
      if (std::ranges::count(readers, s.stage) == 0) readers.push_back(s.stage);
      std::ranges::sort(readers);
    }
    parameters_.insert(parameters_.end(), s.parameters.size(), {s.stage});
  }
}

bool Stages::concern(const Action& a, int stage) const {
  switch (row_of(a.kind).range) {
    case RangeOf::kNothing:
      return !row_of(a.kind).makes.has(Value::kLoss) || segments_.empty() ||
             segments_.back() == stage;
    case RangeOf::kSegments:  // what is computed together is of one stage
      return of_segment(a.range.first) == stage || of_segment(a.range.last) == stage;
    case RangeOf::kParameters:
      for (int p = a.range.first; p <= a.range.last; ++p) {
        if (std::ranges::count(of_parameter(p), stage) > 0) return true;
      }
  }
  return false;
}

ModelShape model_of(const ModelShape& model, int stage, const Part& slice) {
  const Stages stages(model);
  ModelShape out = model;
  int parameter = 0;
  for (SegmentShape& s : out.segments) {
    for (ParameterShape& p : s.parameters) {
      p.elsewhere = std::ranges::count(stages.of_parameter(parameter++), stage) == 0;
      const std::int64_t units = p.split.units;
      if (p.elsewhere || slice.parts == 1 || units == 0) continue;
      p.elements = p.elements / units * share(p.split, slice.parts, slice.index).size();
    }
  }
  return out;
}

// share() gives the last part what is left over. Where counts are stated, the parts are compared.
ModelShape largest_model_of(const ModelShape& model, const Mesh& mesh, int stage) {
  const int parts = slice_of(mesh, 0).parts;
  std::vector<std::int64_t> elements(static_cast<std::size_t>(parts));
  for (const ParameterShape* p : flatten(model)) {
    if (p->split.counts.empty()) continue;
    for (int i = 0; i < parts; ++i) {
      elements[static_cast<std::size_t>(i)] +=
          p->elements / p->split.units * share(p->split, parts, i).size();
    }
  }
  const auto most = std::ranges::max_element(elements);
  const int largest = *most == 0 ? parts - 1 : static_cast<int>(most - elements.begin());
  return model_of(model, stage, {largest, parts});
}

StepPlan project(const StepPlan& plan, Rank rank) {
  StepPlan out = plan;
  const bool in_worker = plan.mesh.find(kWorkerAxis) >= 0 && rank < plan.mesh.size();
  if (in_worker && worker_part(plan.mesh, rank).index > 0) {
    std::erase_if(out.actions, [](const Action& a) {
      return row_of(a.kind).places(Value::kGradients, Placement::kRemote);
    });
  }
  if (model_axes(plan.mesh).empty()) return out;
  const Stages stages(plan.model);
  const int stage = stage_of(plan.mesh, rank);
  std::erase_if(out.actions, [&](const Action& a) { return !stages.concern(a, stage); });
  out.model = model_of(plan.model, stage, slice_of(plan.mesh, rank));
  return out;
}

}  // namespace stormo::plan
