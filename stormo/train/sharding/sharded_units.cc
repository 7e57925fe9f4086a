#include <stormo/train/sharding/sharded_units.h>

#include <algorithm>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/base/check.h>
#include <stormo/codec/codec.h>
#include <stormo/comm/codec/sum_of_codes.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/state/residuals.h>

namespace stormo::train {
void throw_if_failed(const Status& status) {
  throw_if_error(status.within("FullyShardedDataParallel"));
}

ShardedUnits::ShardedUnits(const ShardingGroups& groups, const ShardingOptions& options)
    : groups_(groups), options_(options) {
  if (options_.stage < 1 || options_.stage > 3 || options_.prefetch < 0) {
    throw_if_failed(invalid_argument("stage " + std::to_string(options_.stage) + ", prefetch " +
                                     std::to_string(options_.prefetch) +
                                     "; a stage is 1, 2 or 3, prefetch at least 0"));
  }
}

int ShardedUnits::add(std::vector<NamedParameter> parameters,
                      const std::vector<torch::Tensor>& borrowed, const ShardPrecision& precision) {
  follows_ = false;
  const int index = static_cast<int>(units_.size());
  auto unit = std::make_unique<Unit>();
  unit->uses = {index};
  const int count = static_cast<int>(parameters.size());
  unit->parameters = {parameters_, parameters_ + count - 1};
  parameters_ += count;
  for (const torch::Tensor& p : borrowed) {
    const auto owner = owner_.find(p.unsafeGetTensorImpl());
    if (owner == owner_.end() || std::ranges::count(unit->uses, owner->second) > 0) continue;
    unit->uses.push_back(owner->second);
  }
  while (!parameters.empty()) {
    const torch::ScalarType own = parameters.front().tensor.scalar_type();
    const bool trainable = parameters.front().tensor.requires_grad();
    const auto rest =
        std::stable_partition(parameters.begin(), parameters.end(), [=](const NamedParameter& p) {
          return p.tensor.scalar_type() == own && p.tensor.requires_grad() == trainable;
        });
    std::vector<NamedParameter> group(parameters.begin(), rest);
    parameters.erase(parameters.begin(), rest);
    for (const NamedParameter& p : group) owner_[p.tensor.unsafeGetTensorImpl()] = index;
    const bool resident = options_.stage < 3 || groups_.shards->size() == 1;
    unit->flats.push_back(std::make_unique<FlatParameter>(
        std::move(group), FlatLayout{.ranks = groups_.shards->size(),
                                     .rank = groups_.shards->rank(),
                                     .compute = precision.compute.value_or(own),
                                     .reduce = precision.reduce.value_or(own),
                                     .resident = resident,
                                     .keep_whole_gradient = options_.stage == 1}));
    FlatParameter& flat = *unit->flats.back();
    if (!flat.trainable()) continue;
    first_flag_[&flat] = present_.size();
    present_.resize(present_.size() + flat.parameters().size());
  }
  units_.push_back(std::move(unit));
  return index;
}

bool ShardedUnits::has(const torch::Tensor& parameter) const {
  return owner_.contains(parameter.unsafeGetTensorImpl());
}

std::optional<int> ShardedUnits::find(plan::Range parameters) const {
  for (int u = 0; u < size() && parameters.size() > 0; ++u) {
    if (at(u).parameters == parameters) return u;
  }
  return std::nullopt;
}

Status ShardedUnits::set_plan(const plan::StepPlan& plan, bool states_types) {
  sent_.clear();
  weights_sent_.reset();
  flags_sent_.reset();
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    std::vector<analysis::Collective> all = analysis::requests_of(plan, i, {});
    if (all.empty()) continue;
    if (makes(a, plan::Value::kWeights)) weights_sent_ = all.front();
    if (makes(a, plan::Value::kUnused)) flags_sent_ = all.front();
    const std::optional<int> unit = find(a.range);
    // what the ranks of a replica add up among themselves is none of the units'
    const plan::ActionRow& row = row_of(a.kind);
    if (!unit || !row.change || row.scope != plan::Scope::kRanks) continue;
    auto next = all.begin();
    for (const auto& flat : at(*unit).flats) {
      const bool gathers = all.front().goal == plan::GoalKind::kAllGather;
      if (next == all.end() || (!gathers && !flat->trainable())) continue;
      const bool of_parts = next->goal == plan::GoalKind::kAllReduce;
      const std::int64_t elements = flat->num_elements() / (of_parts ? groups_.shards->size() : 1);
      const DType type = gathers ? flat->gathered_type() : flat->reduced_type();
      if (!states_types) {
        next->elements = elements;
        next->dtype = type;
      }
      STORMO_RETURN_IF_ERROR(check_elements(*next, elements, type).within(describe(plan, i)));
      const plan::GoalKind goal = next->goal;
      sent_[{goal, flat.get()}] = std::move(*next++);
    }
  }
  follows_ = true;
  return {};
}

Status ShardedUnits::perform(const plan::Action& action, double weight) {
  using plan::Placement;
  using plan::Value;
  const plan::ActionRow& row = row_of(action.kind);
  if (row.makes.has(Value::kWeights)) return count(weight);
  if (row.makes.has(Value::kUnused)) return find_unused();
  if (const std::optional<int> unit = find(action.range)) {
    const bool asynchronous = action.asynchronous;
    if (row.needs.has(Value::kTerms)) return release_gradients(*unit);
    if (row.places(Value::kParameters, Placement::kShard)) return release(*unit);
    if (row.places(Value::kParameters, Placement::kReplicate)) {
      return start_gather(*unit, asynchronous);
    }
    if (row.places(Value::kGradients, Placement::kShard)) return start_reduce(*unit, asynchronous);
    if (row.places(Value::kGradients, Placement::kReplicate)) {
      return start_average(*unit, asynchronous);
    }
  }
  return Status(Code::kBadPlan, "'" + to_text(action) + "' is no action of sharded units");
}

Status ShardedUnits::check_views(int unit) const {
  for (const int used : at(unit).uses) {
    for (const auto& flat : at(used).flats) STORMO_RETURN_IF_ERROR(flat->check_views());
  }
  return {};
}

Status ShardedUnits::make_readable(int unit) {
  for (const int used : at(unit).uses) {
    STORMO_RETURN_IF_ERROR(end_gather(used));
    if (std::ranges::all_of(at(used).flats, [](const auto& f) { return f->gathered(); })) continue;
    return Status(Code::kBadPlan, "segment " + std::to_string(unit) +
                                      " would read parameters that were not gathered");
  }
  return {};
}

Status ShardedUnits::start_gather(int index, bool asynchronous) {
  Unit& unit = at(index);
  if (!unit.gathering.empty()) return {};
  for (const auto& flat : unit.flats) {
    if (flat->gathered()) continue;
    flat->prepare_gather();
    if (groups_.shards->size() == 1) {
      flat->end_gather();
    } else {
      STORMO_ASSIGN_OR_RETURN(comm::Work work,
                              send(plan::GoalKind::kAllGather, *flat, *groups_.shards, flat->part(),
                                   flat->whole(), asynchronous));
      if (asynchronous) {
        unit.gathering.push_back(std::move(work));
      } else {
        flat->end_gather();
      }
    }
  }
  return {};
}

Status ShardedUnits::end_gather(int index) {
  Unit& unit = at(index);
  if (unit.gathering.empty()) return {};
  for (comm::Work& work : unit.gathering) STORMO_RETURN_IF_ERROR(work.wait());
  unit.gathering.clear();
  for (const auto& flat : unit.flats) {
    if (!flat->gathered()) flat->end_gather();
  }
  return {};
}

Status ShardedUnits::release(int unit) {
  STORMO_RETURN_IF_ERROR(end_gather(unit));
  for (const auto& flat : at(unit).flats) flat->release();
  return {};
}

Status ShardedUnits::count(double weight) {
  // A pass that ended by an exception: its transfers come to an end, its gradients are lost.
  for (const auto& unit : units_) {
    for (Reduction& r : unit->reducing) (void)r.work.wait();
    unit->reducing.clear();
  }
  std::ranges::fill(present_, std::uint8_t{0});
  scale_ = 1;
  if (groups_.world->size() == 1) return {};
  double total = weight;
  const comm::Buffer sum(std::span(&total, 1));
  STORMO_RETURN_IF_ERROR(
      perform_transfer(*groups_.world, weights_sent_.value(), in_place({&sum, 1})));
  if (!(total > 0)) {
    return invalid_argument("the weights of all ranks are 0; some rank must have samples");
  }
  scale_ = weight / total;
  return {};
}

std::span<std::uint8_t> ShardedUnits::flags_of(const FlatParameter& flat) {
  return std::span(present_).subspan(first_flag_.at(&flat), flat.parameters().size());
}

Status ShardedUnits::start_reduce(int unit, bool asynchronous) {
  for (const auto& flat : at(unit).flats) {
    if (!flat->trainable()) continue;
    Reduction r{.flat = flat.get(), .whole = {}, .part = {}, .work = comm::Work::completed({})};
    r.whole = flat->take_gradients(scale_, flags_of(*flat));
    r.part = flat->reduced_part(r.whole);
    if (groups_.shards->size() > 1) {
      STORMO_ASSIGN_OR_RETURN(
          r.work, send(plan::GoalKind::kReduceScatter, *flat, *groups_.shards,
                       tensor::buffer_of(r.whole), tensor::buffer_of(r.part), asynchronous));
    }
    at(unit).reducing.push_back(std::move(r));
  }
  return {};
}

Result<comm::Work> ShardedUnits::send(plan::GoalKind goal, const FlatParameter& flat,
                                      comm::Communicator& ranks, const comm::Buffer& in,
                                      const comm::Buffer& out, bool asynchronous) {
  const auto found = sent_.find({goal, &flat});
  STORMO_CHECK(found != sent_.end(), "an action of another plan");
  const analysis::Collective& what = found->second;
  const Operands where{.in = {&in, 1}, .out = {&out, 1}, .encoding = encoding(what, flat, ranks)};
  if (asynchronous) return start_transfer(ranks, what, where);
  STORMO_RETURN_IF_ERROR(perform_transfer(ranks, what, where));
  return comm::Work::completed({});
}

comm::EncodedSum* ShardedUnits::encoding(const analysis::Collective& what,
                                         const FlatParameter& flat, comm::Communicator& ranks) {
  if (!row_of(what.codec).encodes()) return nullptr;
  const std::string key = std::string(to_string(what.goal)) + "." + flat.parameters().front().name;
  std::unique_ptr<comm::EncodedSum>& sum = encodings_[key];
  if (sum == nullptr) {
    sum = std::make_unique<comm::SumOfCodes>(ranks, row_of(what.codec), what.elements,
                                             what.codec.density);
    restore_residual(kept_, key, *sum);
  }
  return sum.get();
}

TensorMap ShardedUnits::residuals() const {
  TensorMap out;
  for (const auto& [key, sum] : encodings_) add_residual(out, key, *sum);
  return out;
}

/// Of the terms, not of the reduced part; but in stage 1 the part lies among them.
Status ShardedUnits::release_gradients(int unit) {
  for (Reduction& r : at(unit).reducing) {
    STORMO_RETURN_IF_ERROR(r.work.wait());
    r.whole.reset();
  }
  if (options_.stage > 1) return {};
  for (const auto& flat : at(unit).flats) flat->drop_gradients();
  return {};
}

Status ShardedUnits::start_average(int unit, bool asynchronous) {
  if (groups_.replicas->size() == 1) return {};
  for (Reduction& r : at(unit).reducing) {
    STORMO_RETURN_IF_ERROR(r.work.wait());
    const comm::Buffer part = tensor::buffer_of(r.part);
    STORMO_ASSIGN_OR_RETURN(r.work, send(plan::GoalKind::kAllReduce, *r.flat, *groups_.replicas,
                                         part, part, asynchronous));
  }
  return {};
}

Status ShardedUnits::find_unused() {
  if (groups_.world->size() > 1 && !present_.empty()) {
    const comm::Buffer flags(present_);
    STORMO_RETURN_IF_ERROR(
        perform_transfer(*groups_.world, flags_sent_.value(), in_place({&flags, 1})));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& unit : units_) {
    for (Reduction& r : unit->reducing) {
      STORMO_RETURN_IF_ERROR(r.work.wait());
      r.flat->accept(r.part, flags_of(*r.flat));
    }
    unit->reducing.clear();
  }
  return {};
}

Status ShardedUnits::gather(int unit) {
  STORMO_RETURN_IF_ERROR(start_gather(unit, /*asynchronous=*/false));
  return end_gather(unit);
}

Status ShardedUnits::gather_all() {
  for (int u = 0; u < size(); ++u) STORMO_RETURN_IF_ERROR(gather(u));
  return {};
}

Status ShardedUnits::release_all() {
  for (int u = 0; u < size(); ++u) STORMO_RETURN_IF_ERROR(release(u));
  return {};
}

void ShardedUnits::keep_all() {
  for (FlatParameter* flat : flats()) flat->keep_gathered();
}

Status ShardedUnits::make_stale(bool frozen) {
  for (int u = 0; u < size(); ++u) {
    STORMO_RETURN_IF_ERROR(end_gather(u));
    for (const auto& flat : at(u).flats) {
      if (frozen || flat->trainable()) flat->make_stale();
    }
  }
  return {};
}

std::vector<FlatParameter*> ShardedUnits::flats() const {
  std::vector<FlatParameter*> out;
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flats) out.push_back(flat.get());
  }
  return out;
}

}  // namespace stormo::train
