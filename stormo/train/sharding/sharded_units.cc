#include <stormo/train/sharding/sharded_units.h>

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

bool ShardedUnits::owns_trainable(int unit) const {
  return std::ranges::any_of(at(unit).flats, [](const auto& f) { return f->trainable(); });
}

bool ShardedUnits::trainable(int unit) const {
  return std::ranges::any_of(at(unit).uses, [this](int used) { return owns_trainable(used); });
}

bool ShardedUnits::readable(int unit) const {
  return std::ranges::all_of(at(unit).uses, [this](int used) {
    return std::ranges::all_of(at(used).flats, [](const auto& f) { return f->gathered(); });
  });
}

void ShardedUnits::start_gather(int index, bool asynchronous) {
  Unit& unit = at(index);
  if (!unit.gathering.empty()) return;
  for (const auto& flat : unit.flats) {
    if (flat->gathered()) continue;
    flat->prepare_gather();
    if (groups_.shards->size() == 1) {
      flat->end_gather();
    } else if (!asynchronous) {
      throw_if_failed(groups_.shards->all_gather(flat->part(), flat->whole()));
      flat->end_gather();
    } else {
      unit.gathering.push_back(groups_.shards->all_gather_async(flat->part(), flat->whole()));
    }
  }
}

void ShardedUnits::end_gather(int index) {
  Unit& unit = at(index);
  if (unit.gathering.empty()) return;
  for (comm::Work& work : unit.gathering) throw_if_failed(work.wait());
  unit.gathering.clear();
  for (const auto& flat : unit.flats) {
    if (!flat->gathered()) flat->end_gather();
  }
}

void ShardedUnits::end_gathers_of(int unit) {
  for (const int used : at(unit).uses) end_gather(used);
}

void ShardedUnits::release(int unit) {
  end_gather(unit);
  for (const auto& flat : at(unit).flats) flat->release();
}

void ShardedUnits::count(double weight) {
  // A pass that ended by an exception: its transfers come to an end, its gradients are lost.
  for (const auto& unit : units_) {
    for (Reduction& r : unit->reducing) (void)r.work.wait();
    unit->reducing.clear();
  }
  std::ranges::fill(present_, std::uint8_t{0});
  scale_ = 1;
  if (groups_.world->size() == 1) return;
  double total = weight;
  throw_if_failed(
      groups_.world->all_reduce(comm::buffer_of(std::span(&total, 1)), comm::ReduceOp::kSum));
  if (!(total > 0)) {
    throw_if_failed(
        invalid_argument("the weights of all ranks are 0; some rank must have samples"));
  }
  scale_ = weight / total;
}

/// What is to run, for Request::algorithm: the canonical one, or the selected one (empty).
std::string_view ShardedUnits::algorithm(std::string_view canonical) const {
  return options_.deterministic ? canonical : std::string_view();
}

std::span<std::uint8_t> ShardedUnits::flags_of(const FlatParameter& flat) {
  return std::span(present_).subspan(first_flag_.at(&flat), flat.parameters().size());
}

void ShardedUnits::start_reduce(int unit, bool asynchronous) {
  for (const auto& flat : at(unit).flats) {
    if (flat->trainable()) at(unit).reducing.push_back(start_reduce(*flat, asynchronous));
  }
}

ShardedUnits::Reduction ShardedUnits::start_reduce(FlatParameter& flat, bool asynchronous) {
  Reduction r{.flat = &flat, .whole = {}, .part = {}, .work = comm::Work::completed({})};
  r.whole = flat.take_gradients(scale_, flags_of(flat));
  r.part = flat.reduced_part(r.whole);
  if (groups_.shards->size() == 1) return r;
  const comm::Buffer whole = tensor::buffer_of(r.whole), part = tensor::buffer_of(r.part);
  const comm::Request request{.kind = comm::OperationKind::kReduceScatter,
                              .in = {&whole, 1},
                              .out = {&part, 1},
                              .algorithm = algorithm("canonical_reduce_scatter")};
  if (asynchronous) {
    r.work = groups_.shards->submit(request);
  } else {
    throw_if_failed(groups_.shards->run(request, Deadline::never()));
  }
  return r;
}

void ShardedUnits::end_reduce(int unit) {
  for (Reduction& r : at(unit).reducing) {
    throw_if_failed(r.work.wait());
    r.whole.reset();
  }
}

void ShardedUnits::drop_gradients(int unit) {
  for (const auto& flat : at(unit).flats) flat->drop_gradients();
}

void ShardedUnits::start_average(int unit, bool asynchronous) {
  for (Reduction& r : at(unit).reducing) {
    throw_if_failed(r.work.wait());
    const comm::Buffer part = tensor::buffer_of(r.part);
    const comm::Request request{.kind = comm::OperationKind::kAllReduce,
                                .in = {&part, 1},
                                .out = {&part, 1},
                                .algorithm = algorithm("canonical_all_reduce")};
    if (asynchronous) {
      r.work = groups_.replicas->submit(request);
    } else {
      throw_if_failed(groups_.replicas->run(request, Deadline::never()));
    }
  }
}

void ShardedUnits::find_unused() {
  if (groups_.world->size() > 1) {
    throw_if_failed(
        groups_.world->all_reduce(comm::buffer_of(std::span(present_)), comm::ReduceOp::kMax));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& unit : units_) {
    for (Reduction& r : unit->reducing) {
      throw_if_failed(r.work.wait());
      r.flat->accept(r.part, flags_of(*r.flat));
    }
    unit->reducing.clear();
  }
}

void ShardedUnits::before_forward(int unit) {
  for (const int used : at(unit).uses) start_gather(used, asynchronous());
  const int last = std::min(unit + options_.prefetch, static_cast<int>(units_.size()) - 1);
  for (int next = unit + 1; next <= last; ++next) start_gather(next, asynchronous());
  end_gathers_of(unit);
}

void ShardedUnits::after_forward(int unit, bool recorded) {
  if (recorded && !options_.reshard_after_forward) return;
  for (const int used : at(unit).uses) {
    if (at(used).last_user <= unit) release(used);
  }
}

ShardedUnits::Token ShardedUnits::record(int unit) {
  std::erase_if(calls_, [](const auto& call) { return call.second.token.expired(); });
  const auto token = std::make_shared<const std::int64_t>(next_call_++);
  calls_[*token] = {unit, token};
  return token;
}

void ShardedUnits::begin_pass(double weight, bool synchronise) {
  scattering_.clear();
  consumed_.clear();
  for (const auto& unit : units_) unit->done = false;
  synchronise_ = synchronise;
  if (synchronise) count(weight);
}

void ShardedUnits::before_backward(int unit, std::int64_t call) {
  complete_after(call);
  consumed_.push_back(call);
  for (const int used : at(unit).uses) start_gather(used, asynchronous());
  auto before = calls_.lower_bound(call);
  for (int i = 0; i < options_.prefetch && before != calls_.begin(); ++i) {
    --before;
    for (const int used : at(before->second.unit).uses) start_gather(used, asynchronous());
  }
  end_gathers_of(unit);
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
  for (const auto& [first, u] : complete_units) complete(u);
}

void ShardedUnits::complete(int unit) {
  at(unit).done = true;
  if (synchronise_) {
    start_reduce(unit, asynchronous());
    scattering_.push_back(unit);
    if (scattering_.size() > static_cast<std::size_t>(options_.prefetch)) settle();
  }
  release(unit);
}

void ShardedUnits::settle() {
  end_reduce(scattering_.front());
  if (groups_.replicas != nullptr) start_average(scattering_.front(), /*asynchronous=*/true);
  scattering_.pop_front();
}

void ShardedUnits::end_pass() {
  complete_after(-2);
  if (synchronise_) {
    while (!scattering_.empty()) settle();
    find_unused();
    make_stale(/*frozen=*/false);
  }
  release_all();
  for (const std::int64_t call : consumed_) calls_.erase(call);
}

void ShardedUnits::gather_all() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    start_gather(u, asynchronous());
    end_gather(u);
  }
}

void ShardedUnits::release_all() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) release(u);
}

void ShardedUnits::keep_all() {
  for (FlatParameter* flat : flats()) flat->keep_whole();
}

void ShardedUnits::make_stale(bool frozen) {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    end_gather(u);
    for (const auto& flat : at(u).flats) {
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
