#include <stormo/train/sharded_units.h>

#include <algorithm>

#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>

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
  const int index = static_cast<int>(units_.size());
  auto unit = std::make_unique<Unit>();
  unit->uses = {index};
  unit->last_user = index;
  for (const torch::Tensor& p : borrowed) {
    const auto owner = owner_.find(p.unsafeGetTensorImpl());
    if (owner == owner_.end() || std::ranges::count(unit->uses, owner->second) > 0) continue;
    unit->uses.push_back(owner->second);
    at(owner->second).last_user = index;
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

bool ShardedUnits::trainable(int unit) const {
  return std::ranges::any_of(at(unit).uses, [this](int used) {
    return std::ranges::any_of(at(used).flats, [](const auto& f) { return f->trainable(); });
  });
}

void ShardedUnits::start_gather(Unit& unit) {
  if (!unit.gathering.empty()) return;
  for (const auto& flat : unit.flats) {
    if (flat->gathered()) continue;
    flat->prepare_gather();
    if (groups_.shards->size() == 1) {
      flat->end_gather();
    } else if (options_.prefetch == 0) {
      throw_if_failed(groups_.shards->all_gather(flat->part(), flat->whole()));
      flat->end_gather();
    } else {
      unit.gathering.push_back(groups_.shards->all_gather_async(flat->part(), flat->whole()));
    }
  }
}

void ShardedUnits::end_gather(Unit& unit) {
  if (unit.gathering.empty()) return;
  for (comm::Work& work : unit.gathering) throw_if_failed(work.wait());
  unit.gathering.clear();
  for (const auto& flat : unit.flats) {
    if (!flat->gathered()) flat->end_gather();
  }
}

void ShardedUnits::release(Unit& unit) {
  end_gather(unit);
  for (const auto& flat : unit.flats) flat->release();
}

void ShardedUnits::before_forward(int unit) {
  for (const int used : at(unit).uses) start_gather(at(used));
  const int last = std::min(unit + options_.prefetch, static_cast<int>(units_.size()) - 1);
  for (int next = unit + 1; next <= last; ++next) start_gather(at(next));
  for (const int used : at(unit).uses) end_gather(at(used));
}

void ShardedUnits::after_forward(int unit, bool recorded) {
  if (recorded && !options_.reshard_after_forward) return;
  for (const int used : at(unit).uses) {
    if (at(used).last_user <= unit) release(at(used));
  }
}

ShardedUnits::Token ShardedUnits::record(int unit) {
  std::erase_if(calls_, [](const auto& call) { return call.second.token.expired(); });
  const auto token = std::make_shared<const std::int64_t>(next_call_++);
  calls_[*token] = {unit, token};
  return token;
}

void ShardedUnits::begin_pass(double weight, bool synchronise) {
  // A pass that ended by an exception: its transfers come to an end, its gradients are lost.
  for (Reduction& r : scattering_) (void)r.work.wait();
  for (Reduction& r : scattered_) (void)r.work.wait();
  scattering_.clear();
  scattered_.clear();
  consumed_.clear();
  for (const auto& unit : units_) unit->done = false;
  std::ranges::fill(present_, std::uint8_t{0});
  synchronise_ = synchronise;
  scale_ = 1;
  if (!synchronise || groups_.world->size() == 1) return;
  double total = weight;
  throw_if_failed(
      groups_.world->all_reduce(comm::buffer_of(std::span(&total, 1)), comm::ReduceOp::kSum));
  if (!(total > 0)) {
    throw_if_failed(
        invalid_argument("the weights of all ranks are 0; some rank must have samples"));
  }
  scale_ = weight / total;
}

void ShardedUnits::before_backward(int unit, std::int64_t call) {
  complete_after(call);
  consumed_.push_back(call);
  for (const int used : at(unit).uses) start_gather(at(used));
  auto before = calls_.lower_bound(call);
  for (int i = 0; i < options_.prefetch && before != calls_.begin(); ++i) {
    --before;
    for (const int used : at(before->second.unit).uses) start_gather(at(used));
  }
  for (const int used : at(unit).uses) end_gather(at(used));
}

/// Latest first. What no forward has used comes when the pass ends.
void ShardedUnits::complete_after(std::int64_t call) {
  std::map<int, std::int64_t> first_use;
  for (const auto& [id, each] : calls_) {
    for (const int used : at(each.unit).uses) first_use.emplace(used, id);
  }
  std::vector<std::pair<std::int64_t, int>> complete_units;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const auto found = first_use.find(u);
    const std::int64_t first = found == first_use.end() ? -1 : found->second;
    if (first > call && !at(u).done) complete_units.emplace_back(first, u);
  }
  std::ranges::sort(complete_units, std::greater());
  for (const auto& [first, u] : complete_units) complete(at(u));
}

void ShardedUnits::complete(Unit& unit) {
  unit.done = true;
  if (synchronise_) {
    for (const auto& flat : unit.flats) {
      if (flat->trainable()) reduce(*flat);
    }
  }
  release(unit);
}

/// What is to run, for Request::algorithm: the canonical one, or the selected one (empty).
std::string_view ShardedUnits::algorithm(std::string_view canonical) const {
  return options_.deterministic ? canonical : std::string_view();
}

void ShardedUnits::reduce(FlatParameter& flat) {
  const std::size_t first = first_flag_.at(&flat);
  Reduction r{&flat, first, {}, {}, {}};
  r.whole =
      flat.take_gradients(scale_, std::span(present_).subspan(first, flat.parameters().size()));
  r.part = flat.reduced_part(r.whole);
  const comm::Buffer whole = tensor::buffer_of(r.whole), part = tensor::buffer_of(r.part);
  const comm::Request request{.kind = comm::OperationKind::kReduceScatter,
                              .in = {&whole, 1},
                              .out = {&part, 1},
                              .algorithm = algorithm("canonical_reduce_scatter")};
  if (groups_.shards->size() == 1) {
    r.work = comm::Work::completed({});
  } else if (options_.prefetch == 0) {
    throw_if_failed(groups_.shards->run(request, Deadline::never()));
    r.work = comm::Work::completed({});
  } else {
    r.work = groups_.shards->submit(request);
  }
  scattering_.push_back(std::move(r));
  while (scattering_.size() > static_cast<std::size_t>(options_.prefetch)) {
    settle(scattering_.front());
    scattering_.pop_front();
  }
}

void ShardedUnits::settle(Reduction& r) {
  throw_if_failed(r.work.wait());
  r.whole.reset();
  if (groups_.replicas != nullptr) {
    const comm::Buffer part = tensor::buffer_of(r.part);
    r.work = groups_.replicas->submit({.kind = comm::OperationKind::kAllReduce,
                                       .in = {&part, 1},
                                       .out = {&part, 1},
                                       .algorithm = algorithm("canonical_all_reduce")});
  }
  scattered_.push_back(std::move(r));
}

void ShardedUnits::end_pass() {
  complete_after(-2);
  if (synchronise_) {
    accept_reduced();
    make_stale(/*frozen=*/false);
  }
  release_all();
  for (const std::int64_t call : consumed_) calls_.erase(call);
}

void ShardedUnits::accept_reduced() {
  while (!scattering_.empty()) {
    settle(scattering_.front());
    scattering_.pop_front();
  }
  if (groups_.world->size() > 1) {
    throw_if_failed(
        groups_.world->all_reduce(comm::buffer_of(std::span(present_)), comm::ReduceOp::kMax));
  }
  const torch::NoGradGuard no_grad;
  for (Reduction& r : scattered_) {
    if (groups_.replicas != nullptr) throw_if_failed(r.work.wait());
    r.flat->accept(r.part, std::span(present_).subspan(r.first_flag, r.flat->parameters().size()));
  }
  scattered_.clear();
}

void ShardedUnits::gather_all() {
  for (const auto& unit : units_) {
    start_gather(*unit);
    end_gather(*unit);
  }
}

void ShardedUnits::release_all() {
  for (const auto& unit : units_) release(*unit);
}

void ShardedUnits::keep_all() {
  for (FlatParameter* flat : flats()) flat->keep_whole();
}

void ShardedUnits::make_stale(bool frozen) {
  for (const auto& unit : units_) {
    end_gather(*unit);
    for (const auto& flat : unit->flats) {
      if (frozen || flat->trainable()) flat->make_stale();
    }
  }
}

std::vector<FlatParameter*> ShardedUnits::flats() const {
  std::vector<FlatParameter*> out;
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flats) out.push_back(flat.get());
  }
  return out;
}

}  // namespace stormo::train
