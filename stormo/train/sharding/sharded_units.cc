#include <stormo/train/sharding/sharded_units.h>

#include <algorithm>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/base/check.h>
#include <stormo/comm/codec/encoders.h>
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
  using enum plan::ActionKind;
  sent_.clear();
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    std::vector<analysis::Collective> all = analysis::requests_of(plan, i, {});
    if (all.empty()) continue;
    if (a.kind == kSumWeights || a.kind == kFindUnused) sent_[{a.kind, nullptr}] = all.front();
    const std::optional<int> unit = find(a.range);
    const bool of_unit = a.kind == kAllGather || a.kind == kReduceScatter || a.kind == kAllReduce;
    if (!unit || !of_unit) continue;
    auto next = all.begin();
    for (const auto& flat : at(*unit).flats) {
      if (next == all.end() || (a.kind != kAllGather && !flat->trainable())) continue;
      const std::int64_t elements =
          flat->num_elements() / (a.kind == kAllReduce ? groups_.shards->size() : 1);
      const DType type = a.kind == kAllGather ? flat->gathered_type() : flat->reduced_type();
      if (!states_types) {
        next->elements = elements;
        next->dtype = type;
      }
      STORMO_RETURN_IF_ERROR(check_elements(*next, elements, type).within(describe(plan, i)));
      sent_[{a.kind, flat.get()}] = std::move(*next++);
    }
  }
  follows_ = true;
  return {};
}

Status ShardedUnits::perform(const plan::Action& action, double weight) {
  using enum plan::ActionKind;
  if (action.kind == kSumWeights) return count(weight);
  if (action.kind == kFindUnused) return find_unused();
  const std::optional<int> unit = find(action.range);
  if (unit) {
    switch (action.kind) {
      case kAllGather: return start_gather(*unit, action.asynchronous);
      case kReshard: return release(*unit);
      case kReduceScatter: return start_reduce(*unit, action);
      case kReleaseGradients: return release_gradients(*unit);
      case kAllReduce: return start_average(*unit, action);
      default: break;
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
      const plan::Action gather{.kind = plan::ActionKind::kAllGather, .asynchronous = asynchronous};
      STORMO_ASSIGN_OR_RETURN(comm::Work work,
                              send(gather, *flat, *groups_.shards, flat->part(), flat->whole()));
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
  STORMO_RETURN_IF_ERROR(perform_transfer(
      *groups_.world, sent_.at({plan::ActionKind::kSumWeights, nullptr}), in_place({&sum, 1})));
  if (!(total > 0)) {
    return invalid_argument("the weights of all ranks are 0; some rank must have samples");
  }
  scale_ = weight / total;
  return {};
}

std::span<std::uint8_t> ShardedUnits::flags_of(const FlatParameter& flat) {
  return std::span(present_).subspan(first_flag_.at(&flat), flat.parameters().size());
}

Status ShardedUnits::start_reduce(int unit, const plan::Action& action) {
  for (const auto& flat : at(unit).flats) {
    if (!flat->trainable()) continue;
    STORMO_ASSIGN_OR_RETURN(Reduction started, start_reduce(*flat, action));
    at(unit).reducing.push_back(std::move(started));
  }
  return {};
}

Result<ShardedUnits::Reduction> ShardedUnits::start_reduce(FlatParameter& flat,
                                                           const plan::Action& action) {
  Reduction r{.flat = &flat, .whole = {}, .part = {}, .work = comm::Work::completed({})};
  r.whole = flat.take_gradients(scale_, flags_of(flat));
  r.part = flat.reduced_part(r.whole);
  if (groups_.shards->size() == 1) return r;
  STORMO_ASSIGN_OR_RETURN(r.work, send(action, flat, *groups_.shards, tensor::buffer_of(r.whole),
                                       tensor::buffer_of(r.part)));
  return r;
}

const analysis::Collective& ShardedUnits::sent(plan::ActionKind kind,
                                               const FlatParameter& flat) const {
  const auto found = sent_.find({kind, &flat});
  STORMO_CHECK(found != sent_.end(), "an action of another plan");
  return found->second;
}

Result<comm::Work> ShardedUnits::send(const plan::Action& action, const FlatParameter& flat,
                                      comm::Communicator& ranks, const comm::Buffer& in,
                                      const comm::Buffer& out) {
  const Operands where{
      .in = {&in, 1}, .out = {&out, 1}, .encoding = encoding(action.kind, flat, ranks)};
  const analysis::Collective& what = sent(action.kind, flat);
  if (action.asynchronous) return start_transfer(ranks, what, where);
  STORMO_RETURN_IF_ERROR(perform_transfer(ranks, what, where));
  return comm::Work::completed({});
}

comm::EncodedSum* ShardedUnits::encoding(plan::ActionKind kind, const FlatParameter& flat,
                                         comm::Communicator& ranks) {
  const analysis::Collective& what = sent(kind, flat);
  if (!row_of(what.codec).in_blocks()) return nullptr;
  const std::string key = std::string(to_string(kind)) + "." + flat.parameters().front().name;
  std::unique_ptr<comm::EncodedSum>& sum = encodings_[key];
  if (sum == nullptr) {
    sum = std::make_unique<comm::EncodedSum>(ranks, *comm::find_encoder(what.codec), what.elements);
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

Status ShardedUnits::start_average(int unit, const plan::Action& action) {
  if (groups_.replicas->size() == 1) return {};
  for (Reduction& r : at(unit).reducing) {
    STORMO_RETURN_IF_ERROR(r.work.wait());
    const comm::Buffer part = tensor::buffer_of(r.part);
    STORMO_ASSIGN_OR_RETURN(r.work, send(action, *r.flat, *groups_.replicas, part, part));
  }
  return {};
}

Status ShardedUnits::find_unused() {
  if (groups_.world->size() > 1 && !present_.empty()) {
    const comm::Buffer flags(present_);
    STORMO_RETURN_IF_ERROR(perform_transfer(
        *groups_.world, sent_.at({plan::ActionKind::kFindUnused, nullptr}), in_place({&flags, 1})));
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
