#include <stormo/analysis/step/step_transfers.h>

#include <utility>

#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;

/// From each rank of one stage to the rank of the other in its own pipeline.
Crossing move_of(const plan::StepPlan& plan, const Action& a, const StepSizes& sizes) {
  const auto [first, last] = ends_of(a);
  const auto stage = [&](int segment) {
    return static_cast<std::size_t>(plan.model.segments[static_cast<std::size_t>(segment)].stage);
  };
  Crossing out{.axis = plan::kStageAxis};
  const std::int64_t bytes = moved_bytes(plan, a, sizes);
  for (Rank r = 0; r < plan.mesh.size(); ++r) {
    if (plan::stage_of(plan.mesh, r) != 0) continue;
    const std::vector<Rank> pipeline = plan.mesh.group(r, plan::kStageAxis);
    out.messages.push_back(
        {.from = pipeline[stage(first)], .to = pipeline[stage(last)], .bytes = bytes});
  }
  return out;
}

ServerExchange exchange_of(const Action& a, std::int64_t bytes) {
  if (a.kind == ActionKind::kExchange) return {.pulled = bytes / 2, .pushed = bytes / 2};
  if (a.kind == ActionKind::kPull) return {.pulled = bytes};
  return {.pushed = bytes};
}

}  // namespace

std::vector<Transfer> transfers_of(const plan::StepPlan& plan, std::size_t action,
                                   const StepSizes& sizes) {
  const Action& a = plan.actions[action];
  std::vector<Transfer> out;
  if (const std::int64_t bytes = server_bytes(plan, a, sizes); bytes > 0) {
    out.emplace_back(exchange_of(a, bytes));
  }
  if (row_of(a.kind).moves()) out.emplace_back(move_of(plan, a, sizes));
  for (Crossing& c : crossings_of(plan, a, sizes)) out.emplace_back(std::move(c));
  for (Collective& c : collectives_of(plan, action, sizes)) out.emplace_back(std::move(c));
  return out;
}

}  // namespace stormo::analysis
