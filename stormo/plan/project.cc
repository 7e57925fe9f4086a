#include <stormo/plan/project.h>

#include <algorithm>

namespace stormo::plan {

int num_stages(const Mesh& mesh) {
  const int axis = mesh.find(kStageAxis);
  return axis < 0 ? 1 : mesh.axes[static_cast<std::size_t>(axis)].size;
}

int stage_of(const Mesh& mesh, Rank rank) {
  const int axis = mesh.find(kStageAxis);
  return axis < 0 ? 0 : mesh.coordinates(rank)[static_cast<std::size_t>(axis)];
}

DataPart data_part(const Mesh& mesh, Rank rank) {
  DataPart out;
  const std::vector<int> at = mesh.coordinates(rank);
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    if (mesh.axes[axis].name == kStageAxis) continue;
    out.index = out.index * mesh.axes[axis].size + at[axis];
    out.parts *= mesh.axes[axis].size;
  }
  return out;
}

bool is_boundary(const ModelShape& model, int segment) {
  const auto& all = model.segments;
  const auto at = static_cast<std::size_t>(segment);
  return segment >= 0 && at + 1 < all.size() && all[at].stage != all[at + 1].stage;
}

bool is_move(ActionKind kind) {
  return kind == ActionKind::kMoveActivation || kind == ActionKind::kMoveGradient;
}

MoveEnds ends_of(const Action& move) {
  if (move.kind == ActionKind::kMoveGradient) return {move.range.last, move.range.first};
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
  switch (range_of(a.kind)) {
    case RangeOf::kNothing:
      return a.kind != ActionKind::kLoss || segments_.empty() || segments_.back() == stage;
    case RangeOf::kSegments:  // what is computed together is of one stage
      return of_segment(a.range.first) == stage || of_segment(a.range.last) == stage;
    case RangeOf::kParameters:
      for (int p = a.range.first; p <= a.range.last; ++p) {
        if (std::ranges::count(of_parameter(p), stage) > 0) return true;
      }
  }
  return false;
}

ModelShape model_of_stage(const ModelShape& model, int stage) {
  const Stages stages(model);
  ModelShape out = model;
  int parameter = 0;
  for (SegmentShape& s : out.segments) {
    for (ParameterShape& p : s.parameters) {
      p.elsewhere = std::ranges::count(stages.of_parameter(parameter++), stage) == 0;
    }
  }
  return out;
}

StepPlan project(const StepPlan& plan, Rank rank) {
  if (num_stages(plan.mesh) == 1) return plan;
  const Stages stages(plan.model);
  const int stage = stage_of(plan.mesh, rank);
  StepPlan out = plan;
  std::erase_if(out.actions, [&](const Action& a) { return !stages.concern(a, stage); });
  out.model = model_of_stage(plan.model, stage);
  return out;
}

}  // namespace stormo::plan
