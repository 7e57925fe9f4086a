#include <stormo/train/store/sharded_store.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/store/whole_norms.h>

namespace stormo::train {
namespace {

std::shared_ptr<model::Chain> chain_to_shard(const std::shared_ptr<torch::nn::Module>& module) {
  if (auto chain = std::dynamic_pointer_cast<model::Chain>(module)) return chain;
  throw Error(invalid_argument(
      "strategy 'fsdp' shards a model segment by segment: it must be a model::Chain; use 'ddp', or "
      "FullyShardedDataParallel in a loop of your own"));
}

Status check_segments(const model::Chain& chain, const plan::ModelShape& model) {
  const auto& segments = chain.segments();
  const auto count = [](const auto& module) { return module->parameters().size(); };
  std::size_t covered = 0;
  for (const auto& segment : segments) covered += count(segment);
  if (covered != chain.parameters().size()) {
    return invalid_argument("the chain has parameters outside of its segments; move them into one");
  }
  if (std::ranges::equal(segments, model.segments, {}, count,
                         [](const plan::SegmentShape& s) { return s.parameters.size(); })) {
    return {};
  }
  return Status(Code::kBadPlan, "the plan has " + std::to_string(model.segments.size()) +
                                    " segments, other ones than the model::Chain's " +
                                    std::to_string(segments.size()) + "; use Chain::shape()");
}

ShardPrecision precision_of(Codec codec) {
  const std::optional<DType> type = row_of(codec).encodes() ? DType::kFloat32 : row_of(codec).type;
  return type ? ShardPrecision{.reduce = tensor::scalar_type_of(*type)} : ShardPrecision{};
}

/// The axes whose ranks hold the same shards.
std::vector<std::string> replica_axes(const plan::Mesh& mesh) {
  std::vector<std::string> out = data_axes(mesh);
  std::erase(out, parallel::kShardAxis);
  return out;
}

/// Whose ranks share one copy is in the mesh, and so is who holds the same part of another one.
ShardingGroups sharding_groups(const AxisGroups& groups) {
  ShardingGroups out{.world = groups.over(data_axes(groups.mesh())).take_or_throw(),
                     .shards = groups.over({parallel::kShardAxis}).take_or_throw(),
                     .replicas = nullptr};
  const std::vector<std::string> replicas = replica_axes(groups.mesh());
  if (!replicas.empty()) out.replicas = groups.over(replicas).take_or_throw();
  return out;
}

}  // namespace

int sharding_stage(const plan::StepPlan& plan) {
  for (const plan::Action& a : plan.actions) {
    if (places(a, plan::Value::kParameters, plan::Placement::kShard)) return 3;
  }
  for (const plan::Action& a : plan.actions) {
    if (row_of(a.kind).needs.has(plan::Value::kTerms)) return 2;
    if (makes(a, plan::Value::kUpdated)) return 1;
  }
  return 1;
}

Codec codec_of_parts(const plan::StepPlan& plan, plan::Range parameters) {
  for (const plan::Action& a : plan.actions) {
    const bool reduced = places(a, plan::Value::kGradients, plan::Placement::kShard);
    if (reduced && a.range == parameters) return a.codec;
  }
  return Codec::kNone;
}

ShardedStore::ShardedStore(const AxisGroups& groups,
                           const std::shared_ptr<torch::nn::Module>& module,
                           const plan::StepPlan& plan, const OptimizerOptions& options,
                           const MaterializeSegment& bring)
    : ParameterStore(/*whole=*/false, /*always_readable=*/false),
      groups_(groups),
      // what is asynchronous is in the plan
      fsdp_(sharding_groups(groups), {.stage = sharding_stage(plan), .prefetch = 0}),
      units_(fsdp_.units()) {
  const std::shared_ptr<model::Chain> chain = chain_to_shard(module);
  throw_if_error(check_segments(*chain, plan.model));
  const plan::StepPlan own = project(plan, groups.world().rank());
  add_units(*chain, own, bring);
  WholeNorms norms = whole_norms(groups, plan);
  optimizer_ = fsdp_.make_optimizer(options, std::move(norms.sum), norms.counts);
  throw_if_error(units_.make_stale(/*frozen=*/false));  // the first step gathers as every other
  set_plan(own);
}

void ShardedStore::set_plan(const plan::StepPlan& plan) { throw_if_error(units_.set_plan(plan)); }

void ShardedStore::add_units(const model::Chain& chain, const plan::StepPlan& own,
                             const MaterializeSegment& bring) {
  std::vector<NamedParameter> parameters;
  for (const auto& p : chain.named_parameters()) parameters.push_back({p.key(), p.value()});
  const std::vector<plan::Unit> units = plan::units_of(own.model);
  auto unit = units.begin();
  std::vector<int> unit_of(parameters.size(), -1);  // elsewhere
  for (std::size_t s = 0; s < own.model.segments.size(); ++s) {
    if (bring) bring(s);
    for (; unit != units.end() && unit->segment == static_cast<int>(s); ++unit) {
      const plan::Range range = unit->parameters;
      if (unit->elsewhere) {
        units_.skip(range.size());
        continue;
      }
      std::fill_n(unit_of.begin() + range.first, range.size(), units_.size());
      const auto first = parameters.begin() + range.first;
      fsdp_.add_unit(own.model.segments[s].name, {first, first + range.size()},
                     precision_of(codec_of_parts(own, range)));
    }
  }
  for (const std::vector<int>& read : parameters_read(own.model)) {
    std::vector<int>& mine = reads_.emplace_back();
    for (const int p : read) {
      const int number = unit_of[static_cast<std::size_t>(p)];
      if (number >= 0 && std::ranges::count(mine, number) == 0) mine.push_back(number);
    }
  }
}

Status ShardedStore::perform(const plan::Action& action, double weight) {
  STORMO_RETURN_IF_ERROR(units_.perform(action, weight));
  done(action);
  return {};
}

Status ShardedStore::make_readable(plan::Range segments) {
  for (int s = segments.first; s <= segments.last; ++s) {
    for (const int unit : reads_[static_cast<std::size_t>(s)]) {
      STORMO_RETURN_IF_ERROR(units_.make_readable(unit));
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
  throw_if_error(units_.make_stale(/*frozen=*/false));
}

/// While it lives, some units are whole. As after gather(), the next step gathers as every other.
class ShardedStore::Shown {
 public:
  Shown(ShardedUnits& units, std::vector<int> shown) : units_(units), shown_(std::move(shown)) {
    for (const int unit : shown_) throw_if_error(units_.gather(unit));
  }
  ~Shown() {
    for (const int unit : shown_) (void)units_.release(unit);
    (void)units_.make_stale(/*frozen=*/false);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  ShardedUnits& units_;
  std::vector<int> shown_;
};

GatheredParameters ShardedStore::gather_segments(plan::Range segments) {
  std::vector<int> units;
  for (int s = segments.first; s <= segments.last; ++s) {
    for (const int unit : reads_[static_cast<std::size_t>(s)]) {
      if (std::ranges::count(units, unit) == 0) units.push_back(unit);
    }
  }
  return std::make_shared<Shown>(units_, std::move(units));
}

GatheredParameters ShardedStore::gather() {
  return std::make_shared<FullyShardedDataParallel::Gathered>(fsdp_);
}

double ShardedStore::squares(const std::function<bool(const std::string&)>& counts) const {
  return fsdp_.squares(counts);
}

torch::Tensor* ShardedStore::gradient_of(const std::string& parameter) {
  for (FlatParameter* flat : units_.flats()) {
    if (torch::Tensor* const gradient = flat->gradient_of(parameter)) return gradient;
  }
  return nullptr;
}

std::vector<TensorPiece> ShardedStore::pieces() const {
  if (!fsdp_.has_first_copy()) return {};
  std::vector<TensorPiece> out = fsdp_.state();
  const std::vector<TensorPiece> state = optimizer_->state_pieces();
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

}  // namespace stormo::train
