#include <stormo/parallel/sharding/shard_actions.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace stormo::parallel {

using plan::Action;
using plan::ActionKind;

ShardActions::ShardActions(const Sharding& how, const plan::StepPlan& replicas, Emit emit)
    : how_(how), emit_(std::move(emit)) {
  std::ranges::copy_if(replicas.actions, std::back_inserter(averages_), [](const Action& a) {
    return places(a, plan::Value::kGradients, plan::Placement::kReplicate);
  });
}

void ShardActions::emit(ActionKind kind, plan::Range unit, bool asynchronous) {
  emit_({.kind = kind, .range = unit, .axes = {kShardAxis}, .asynchronous = asynchronous});
}

void ShardActions::gather(plan::Range unit) {
  emit(ActionKind::kAllGather, unit, how_.prefetch > 0);
}

void ShardActions::reshard(plan::Range unit) { emit(ActionKind::kReshard, unit, false); }

void ShardActions::sum_weights() { emit_({.kind = ActionKind::kSumWeights}); }

void ShardActions::find_unused() { emit_({.kind = ActionKind::kFindUnused}); }

void ShardActions::reduce(plan::Range unit, int stage) {
  emit(ActionKind::kReduceScatter, unit, how_.prefetch > 0);
  std::deque<plan::Range>& under_way = under_way_[stage];
  under_way.push_back(unit);
  if (under_way.size() > static_cast<std::size_t>(how_.prefetch)) drain_oldest(under_way);
}

/// Its terms go, and its outcome is a term of the replicas'.
void ShardActions::drain_oldest(std::deque<plan::Range>& under_way) {
  const plan::Range unit = under_way.front();
  under_way.pop_front();
  if (how_.stage > 1) {
    release_terms(unit);
  } else {
    held_.insert({unit.first, unit});
  }
  for (const Action& average : averages_) {
    if (average.range.first > unit.first || average.range.last < unit.last) continue;
    emit_({.kind = ActionKind::kAllReduce,
           .range = unit,
           .axes = average.axes,
           .asynchronous = true});
  }
}

void ShardActions::drain() {
  for (auto& [stage, under_way] : under_way_) {
    while (!under_way.empty()) drain_oldest(under_way);
  }
}

void ShardActions::release_terms(plan::Range unit) {
  emit_({.kind = ActionKind::kReleaseGradients, .range = unit});
}

void ShardActions::after_update() {
  for (const auto& [first, unit] : std::exchange(held_, {})) release_terms(unit);
}

}  // namespace stormo::parallel
