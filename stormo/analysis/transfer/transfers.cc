#include <stormo/analysis/transfer/transfers.h>

#include <algorithm>
#include <map>
#include <utility>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::Placement;
using plan::Value;

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

/// From each rank to those of its group that mix its values with theirs, in the first round.
Crossing of_neighbours(const plan::StepPlan& plan, std::size_t action, const StepSizes& sizes) {
  const Action& a = plan.actions[action];
  Crossing out{.axis = a.axes.front()};
  const int ranks = ranks_over(plan.mesh, a.axes);
  const plan::Mixing mixing = plan::mixing_of(a.algorithm, ranks).take_or_throw();
  std::map<std::pair<int, int>, std::int64_t> bytes_of;  // by stage and slice
  for (Rank r = 0; r < plan.mesh.size(); ++r) {
    const plan::Part slice = plan::slice_of(plan.mesh, r);
    const auto [known, is_new] = bytes_of.try_emplace({plan::stage_of(plan.mesh, r), slice.index});
    if (is_new) {
      const plan::ModelShape model = model_of(plan.model, known->first.first, slice);
      for (const Collective& c : requests_of(plan, {model}, action, sizes))
        known->second += c.bytes();
    }
    const std::vector<Rank> group = plan.mesh.group(r, out.axis);
    const auto at = static_cast<Rank>(std::ranges::find(group, r) - group.begin());
    for (const Rank other : senders_to(mixing.at(0), at)) {
      out.messages.push_back(
          {.from = group[static_cast<std::size_t>(other)], .to = r, .bytes = known->second});
    }
  }
  return out;
}

ServerExchange exchange_of(const Action& a, std::int64_t bytes) {
  const plan::ActionRow& row = row_of(a.kind);
  if (row.takes_from(Placement::kRemote)) return {.pulled = bytes};
  const bool both = row.places(Value::kParameters, Placement::kRemote);
  if (both) return {.pulled = bytes / 2, .pushed = bytes / 2};
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
  if (row_of(a.kind).meets_neighbours()) {
    if (Crossing sent = of_neighbours(plan, action, sizes); !sent.messages.empty())
      out.emplace_back(std::move(sent));
  }
  for (Crossing& c : crossings_of(plan, a, sizes)) out.emplace_back(std::move(c));
  for (Collective& c : collectives_of(plan, action, sizes)) out.emplace_back(std::move(c));
  return out;
}

}  // namespace stormo::analysis
