// Shards of the stages of a pipeline.
//
// Idea: the ranks that have the same stage share one copy of it, as those of sharded() share one of
// the model. Stages compute several micro-batches in turn, so when a unit is read and when its
// gradient is complete follows from the plan: before its first forward and after its last backward.
// With stage 3 each micro-batch gathers again what it reads, so others send less. A parameter that
// several stages read is a unit by itself. So its shards are the same on each of them, and they add
// up shards. Papers: those of sharded.cc; D. Narayanan et al., "Efficient large-scale language
// model training on GPU clusters using Megatron-LM", SC 2021, for the combination.
#include <stormo/parallel/sharding/shard_stages.h>

#include <algorithm>
#include <map>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/sharding/shard_actions.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Placement;
using plan::Value;

bool all_reduces(const plan::ActionRow& row) {
  return row.places(Value::kGradients, Placement::kReplicate);
}

class StageSharder {
 public:
  /// `plan` has one segment in each computation.
  StageSharder(const Sharding& how, const plan::StepPlan& plan)
      : how_(how),
        plan_(plan),
        actions_(how, plan, [this](const Action& a) { out_.push_back(a); }) {
    std::vector<int> unit_of;  // by parameter
    for (const auto& [own, segment, trains, elsewhere] : plan::units_of(plan.model)) {
      unit_of.insert(unit_of.end(), at(own.size()), static_cast<int>(units_.size()));
      // what is never updated is not cut, unless it is dropped after use
      units_.push_back({.own = own, .trains = trains, .whole = how.stage < 3 && !trains});
    }
    for (const std::vector<int>& read : parameters_read(plan.model)) {
      std::vector<int>& uses = uses_.emplace_back();
      for (const int p : read) {
        if (std::ranges::count(uses, unit_of[at(p)]) == 0) uses.push_back(unit_of[at(p)]);
      }
    }
    while (at(first_trained_) < uses_.size() && !trains(first_trained_)) ++first_trained_;
    for (const Action& a : plan.actions) {
      if (!row_of(a.kind).adds_gradients) continue;
      for (const int unit : uses_[at(a.range.first)]) ++units_[at(unit)].additions_left;
    }
  }

  void add(const Action& a) {
    const plan::ActionRow& row = row_of(a.kind);
    const bool computes = row.range == plan::RangeOf::kSegments && !row.moves();
    if (computes && !row.recomputes()) return compute(a);
    if (all_reduces(row)) return;  // of shards: see drain()
    const bool uses_all = row.makes.has(Value::kNorm) || row.makes.has(Value::kUpdated) ||
                          row.places(Value::kGradients, Placement::kStaged);
    if (uses_all) end_reductions();
    out_.push_back(a);
    if (row.makes.has(Value::kBatch)) actions_.sum_weights();
    if (row.makes.has(Value::kOutputGradient)) reduce_complete(stage_of(a.range.last));
    if (row.makes.has(Value::kNorm)) out_.back().axes.emplace_back(kShardAxis);
    if (row.makes.has(Value::kUpdated)) actions_.after_update();
  }
  std::vector<Action> take() { return std::move(out_); }

 private:
  struct Unit {
    plan::Range own;         // parameters
    bool trains = false;     // some of them
    bool whole = false;      // gathered, or on its way
    int additions_left = 0;  // backwards that will add to its gradients
  };

  bool trains(int segment) const {
    return std::ranges::any_of(uses_[at(segment)],
                               [this](int unit) { return units_[at(unit)].trains; });
  }

  void compute(const Action& a) {
    const int segment = a.range.first;
    const bool forward = row_of(a.kind).runs_forward();
    // no gradient reaches what lies before the first trainable parameter
    const bool reads = forward || segment >= first_trained_;
    if (reads) gather_ahead(segment, forward ? 1 : -1);
    out_.push_back(a);
    for (const int unit : uses_[at(segment)]) {
      if (reads && how_.stage == 3) release(units_[at(unit)]);
      if (!row_of(a.kind).adds_gradients) continue;
      if (--units_[at(unit)].additions_left > 0 || !units_[at(unit)].trains) continue;
      complete_[stage_of(segment)].push_back(unit);
    }
    // what blocks comes after the move for which another stage waits
    const bool later = how_.prefetch == 0 && row_of(a.kind).passes_gradient() &&
                       row_of(a.kind).adds_gradients && passes_on(segment);
    if (!later) reduce_complete(stage_of(segment));
  }
  int stage_of(int segment) const { return plan_.model.segments[at(segment)].stage; }

  /// Whether the gradient of its input, or that of a segment before it, goes to another stage.
  bool passes_on(int segment) const {
    while (segment > 0 && !is_boundary(plan_.model, segment - 1)) --segment;
    return segment > 0;
  }

  /// Of a segment, and of those that its stage computes next.
  void gather_ahead(int segment, int step) {
    for (int i = 0; i <= how_.prefetch; ++i) {
      const int next = segment + step * i;
      if (next < 0 || at(next) == uses_.size()) return;
      if (i > 0 && is_boundary(plan_.model, std::min(next, next - step))) return;
      if (step < 0 && next < first_trained_) return;
      for (const int unit : uses_[at(next)]) gather(units_[at(unit)]);
    }
  }
  void gather(Unit& unit) {
    if (!std::exchange(unit.whole, true)) actions_.gather(unit.own);
  }
  void release(Unit& unit) {
    if (std::exchange(unit.whole, false)) actions_.reshard(unit.own);
  }

  void reduce_complete(int stage) {
    for (const int unit : std::exchange(complete_[stage], {})) {
      actions_.reduce(units_[at(unit)].own, stage);
    }
  }
  void end_reductions() {
    if (std::exchange(reduced_, true)) return;
    actions_.drain();
    actions_.find_unused();
  }

  const Sharding& how_;
  const plan::StepPlan& plan_;
  ShardActions actions_;
  std::vector<Unit> units_;
  std::vector<std::vector<int>> uses_;        // by segment: the units that it reads
  int first_trained_ = 0;                     // the first segment that reads a trainable parameter
  std::map<int, std::vector<int>> complete_;  // by stage: units whose gradients are there
  bool reduced_ = false;                      // all of them
  std::vector<Action> out_;
};

}  // namespace

std::vector<Action> shard_stages(const Sharding& how, const plan::StepPlan& in) {
  const plan::StepPlan split = by_segment()(in).take_or_throw();
  StageSharder sharder(how, split);
  for (const Action& a : split.actions) sharder.add(a);
  return sharder.take();
}

}  // namespace stormo::parallel
