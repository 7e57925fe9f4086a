#include <stormo/train/store/sharded_store.h>

#include <algorithm>
#include <utility>

namespace stormo::train {
namespace {

std::shared_ptr<model::Chain> chain_of(const std::shared_ptr<torch::nn::Module>& module) {
  if (auto chain = std::dynamic_pointer_cast<model::Chain>(module)) return chain;
  throw Error(invalid_argument(
      "strategy 'fsdp' shards a model segment by segment: it must be a model::Chain; use 'ddp', or "
      "FullyShardedDataParallel in a loop of your own"));
}

/// Whose ranks share one copy is in the mesh, and so is who holds the same part of another one.
ShardingGroups sharding_groups(const AxisGroups& groups) {
  ShardingGroups out{.world = &groups.world(), .shards = nullptr, .replicas = nullptr};
  out.shards = groups.over({"shard"}).take_or_throw();
  const int replicas = groups.mesh().find("dp");
  if (replicas >= 0) out.replicas = groups.over({"dp"}).take_or_throw();
  return out;
}

}  // namespace

ShardedStore::ShardedStore(const AxisGroups& groups,
                           const std::shared_ptr<torch::nn::Module>& module,
                           const plan::StepPlan& plan, const OptimizerOptions& options,
                           const ShardingOptions& sharding)
    : saves_(groups.mesh().find("dp") < 0 ||
             groups.world().rank() < groups.mesh().axes.back().size),
      fsdp_(sharding_groups(groups), sharding),
      units_(fsdp_.units()) {
  fsdp_.shard(chain_of(module));
  optimizer_ = fsdp_.make_optimizer(options);
  match_units(plan.model);
}

void ShardedStore::match_units(const plan::ModelShape& model) {
  const std::vector<FlatParameter*> flats = units_.flats();
  std::int64_t elements = 0;
  for (const FlatParameter* flat : flats) elements += flat->elements();
  int next = 0;
  for (int s = 0; s < static_cast<int>(model.segments.size()); ++s) {
    const plan::SegmentShape& segment = model.segments[static_cast<std::size_t>(s)];
    const bool has_unit = !segment.parameters.empty() || !segment.borrowed.empty();
    unit_of_segment_.push_back(has_unit ? std::optional<int>(next) : std::nullopt);
    if (has_unit) units_by_range_.push_back({parameters_of(model, {s, s}), next++});
  }
  if (next == units_.size() && elements == num_elements(model)) return;
  throw Error(Status(Code::kBadPlan, "the plan has other segments than the model::Chain: " +
                                         std::to_string(next) + " with parameters, not " +
                                         std::to_string(units_.size()) + "; use Chain::shape()"));
}

const ShardedStore::Unit* ShardedStore::unit_of(plan::Range parameters) const {
  const auto unit = std::ranges::find(units_by_range_, parameters, &Unit::parameters);
  return unit == units_by_range_.end() ? nullptr : &*unit;
}

Status ShardedStore::check(const plan::StepPlan& plan) const {
  using enum plan::ActionKind;
  const auto shard = static_cast<std::size_t>(plan.mesh.find("shard"));
  if (plan.parameters[shard] != plan::Placement::kShard) {
    return Status(Code::kBadPlan, "shards lie in parts between steps: state parameters over shard");
  }
  std::vector<const Unit*> reduced, averaged;
  bool updated = false;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    if (a.kind == kUpdate && a.range != all_parameters(plan.model)) {
      return cannot(plan, i, "shards are updated all at once");
    }
    updated = updated || a.kind == kUpdate;
    if (a.kind == kReleaseGradients && !updated && units_.options().stage == 1) {
      return cannot(plan, i, "in stage 1 the part that is updated lies among the terms");
    }
    if (a.kind == kCount && a.asynchronous) {
      return cannot(plan, i, "shards scale their gradients by the sum of weights at once");
    }
    if (!moves(a.kind) || a.kind == kCount || a.kind == kFindUnused) continue;
    const Unit* unit = unit_of(a.range);
    if (unit == nullptr) return cannot(plan, i, "shards are moved segment by segment");
    const std::string axis = a.kind == kAllReduce ? "dp" : "shard";
    if (a.kind != kReleaseGradients && a.axes != std::vector<std::string>{axis}) {
      return cannot(plan, i, "is not what shards do over " + a.axes.front());
    }
    if (a.kind == kShareGradients || a.kind == kShareParameters) {
      return cannot(plan, i, "shards are no shared copy");
    }
    if (a.kind == kReduceScatter) reduced.push_back(unit);
    if (a.kind != kAllReduce) continue;
    if (std::ranges::count(reduced, unit) == 0)
      return cannot(plan, i, "shards are reduced to parts first");
    averaged.push_back(unit);
  }
  if (plan.mesh.find("dp") >= 0 && averaged.size() != reduced.size()) {
    return Status(Code::kBadPlan, "the parts of some gradients are not averaged over dp");
  }
  for (const Unit& unit : units_by_range_) {
    if (units_.owns_trainable(unit.index) && std::ranges::count(reduced, &unit) == 0) {
      return Status(Code::kBadPlan, "no reduce_scatter of parameters " +
                                        std::to_string(unit.parameters.first) + "-" +
                                        std::to_string(unit.parameters.last));
    }
  }
  return {};
}

Status ShardedStore::perform(const plan::Action& action, double weight) {
  using enum plan::ActionKind;
  const Unit* unit = unit_of(action.range);
  switch (action.kind) {
    case kCount: units_.count(weight); break;
    case kFindUnused: units_.find_unused(); break;
    case kAllGather: units_.start_gather(unit->index, action.asynchronous); break;
    case kReshard: units_.release(unit->index); break;
    case kReduceScatter: units_.start_reduce(unit->index, action.asynchronous); break;
    case kReleaseGradients: release_gradients(unit->index); break;
    case kAllReduce: units_.start_average(unit->index, action.asynchronous); break;
    default: break;  // check() has refused the others
  }
  done(action);
  return {};
}

void ShardedStore::release_gradients(int unit) {
  units_.end_reduce(unit);
  if (units_.options().stage == 1) units_.drop_gradients(unit);
}

Status ShardedStore::make_readable(plan::Range segments) {
  for (int s = segments.first; s <= segments.last; ++s) {
    const std::optional<int> unit = unit_of_segment_[static_cast<std::size_t>(s)];
    if (!unit) continue;
    units_.end_gathers_of(*unit);
    if (!units_.readable(*unit)) {
      return Status(Code::kBadPlan, "segment " + std::to_string(s) +
                                        " would read parameters that were not gathered");
    }
  }
  return {};
}

Status ShardedStore::update(const ParameterRange&, const StepRate& rate) {
  fsdp_.step(*optimizer_, rate);
  return {};
}

// Only now: what was gathered is not up to date any more, also after an update that was skipped, so
// that every step gathers alike.
void ShardedStore::zero_grad() {
  fsdp_.zero_grad();
  units_.make_stale(/*frozen=*/false);
}

std::shared_ptr<void> ShardedStore::readable() {
  // The step gathers again what stays whole here.
  struct Readable {
    explicit Readable(FullyShardedDataParallel& f) : fsdp(f), gathered(f) {}
    ~Readable() { fsdp.units().make_stale(/*frozen=*/false); }
    FullyShardedDataParallel& fsdp;
    FullyShardedDataParallel::Gathered gathered;
  };
  return std::make_shared<Readable>(fsdp_);
}

std::vector<TensorPiece> ShardedStore::pieces() const {
  if (!saves_) return {};
  std::vector<TensorPiece> out = fsdp_.state();
  const std::vector<TensorPiece> state = optimizer_->state_pieces();
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

}  // namespace stormo::train
