#include <stormo/train/sharding/fully_sharded_data_parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include <stormo/parallel/sharding/model_state.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/optimizer/tensor_update.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/sharding/sharded_loop.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

namespace {

void check_can_be_sharded(const NamedParameter& p) {
  Status supported = tensor::dtype_of(p.tensor.scalar_type()).status();
  if (supported.ok() && p.tensor.layout() != torch::kStrided) {
    supported = invalid_argument("only dense tensors can be sharded");
  }
  throw_if_failed(supported.within("parameter '" + p.name + "'"));
}

}  // namespace

struct FullyShardedDataParallel::State {
  State(const ShardingGroups& groups, const ShardingOptions& options)
      : loop(std::make_shared<ShardedLoop>(groups, options)), units(loop->units()) {}

  // Subgroups made for `hybrid`; destroyed after what uses them.
  std::unique_ptr<AxisGroups> own_groups;
  std::shared_ptr<ShardedLoop> loop;
  ShardedUnits& units;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;  // of the units
  TensorMap buffers;                                        // of all of them
  std::vector<std::optional<torch::ScalarType>> compute;    // of the units
  /// What forward(x) runs.
  struct Step {
    int unit;
    std::function<torch::Tensor(torch::Tensor)> run;
  };
  std::vector<Step> chain;
};

FullyShardedDataParallel::FullyShardedDataParallel(const ShardingGroups& groups,
                                                   const ShardingOptions& options)
    : state_(std::make_shared<State>(groups, options)) {}

FullyShardedDataParallel::FullyShardedDataParallel(comm::Communicator& world,
                                                   const ShardingOptions& options) {
  ShardingGroups groups{&world, &world, nullptr};
  std::unique_ptr<AxisGroups> own;
  if (options.hybrid && world.cross_size() > 1) {
    const int hosts = world.cross_size(), each = world.local_size();
    if (std::ranges::count(world.ranks_per_host(), each) != hosts) {
      throw_if_failed(invalid_argument(
          "hybrid: hosts have different numbers of ranks; start equal numbers, or shard over all"));
    }
    own = std::make_unique<AxisGroups>(world,
                                       plan::Mesh{{{"dp", hosts}, {parallel::kShardAxis, each}}});
    groups.shards = own->over({parallel::kShardAxis}).take_or_throw();
    groups.replicas = own->over({"dp"}).take_or_throw();
  }
  state_ = std::make_shared<State>(groups, options);
  state_->own_groups = std::move(own);
}

FullyShardedDataParallel::~FullyShardedDataParallel() = default;

ShardedUnits& FullyShardedDataParallel::units() const { return state_->units; }

void FullyShardedDataParallel::add_unit(const std::string& name, std::vector<NamedParameter> own,
                                        const ShardPrecision& precision) {
  for (const NamedParameter& p : own) check_can_be_sharded(p);
  state_->loop->add(name, std::move(own), {}, precision);
}

void FullyShardedDataParallel::add_unit(const std::string& name,
                                        const std::shared_ptr<torch::nn::Module>& block,
                                        const std::vector<torch::Tensor>& borrowed,
                                        const std::optional<ShardPrecision>& precision) {
  ShardedUnits& units = state_->units;
  const std::string prefix = name.empty() ? "" : name + ".";
  std::map<std::string, torch::Tensor> tensors;
  std::vector<NamedParameter> own;
  std::vector<torch::Tensor> others = borrowed;
  for (const auto& p : block->named_parameters()) {
    if (units.has(p.value())) {
      others.push_back(p.value());
      continue;
    }
    const auto same = [&p](const NamedParameter& known) { return known.tensor.is_same(p.value()); };
    if (std::ranges::any_of(own, same)) continue;  // a second name
    own.push_back({prefix + p.key(), p.value()});
    check_can_be_sharded(own.back());
    tensors.emplace(own.back().name, p.value());
  }
  for (const auto& b : block->named_buffers()) {
    tensors.emplace(prefix + b.key(), b.value());
    state_->buffers.emplace(prefix + b.key(), b.value());
  }
  comm::Communicator& world = *units.groups().world;
  throw_if_failed(check_same_tensors(world, tensors));
  throw_if_failed(broadcast_values(world, tensors));
  const ShardPrecision chosen = precision.value_or(units.options().precision);
  state_->modules.push_back(block);
  state_->compute.push_back(chosen.compute);
  state_->loop->add(name, std::move(own), others, chosen);
}

void FullyShardedDataParallel::shard(std::shared_ptr<model::Chain> chain) {
  std::size_t covered = 0;
  const bool is_first = state_->units.groups().world->rank() == 0;
  for (std::size_t i = 0; i < chain->segments().size(); ++i) {
    const std::shared_ptr<model::Segment>& segment = chain->segments()[i];
    if (chain->lacks_values(i)) is_first ? chain->make_values(i) : chain->give_memory(i);
    covered += segment->parameters().size();
    add_unit(chain->segment_names()[i], segment, segment->borrowed_parameters(), {});
    state_->chain.push_back({state_->units.size() - 1, [segment](torch::Tensor x) {
                               return segment->forward(std::move(x));
                             }});
  }
  if (covered != chain->parameters().size()) {
    throw_if_failed(
        invalid_argument("the chain has parameters outside of its segments; move them into one"));
  }
}

void FullyShardedDataParallel::shard(const torch::nn::Sequential& sequential) {
  const auto children = sequential->named_children();
  for (std::size_t i = 0; i < sequential->size(); ++i) {
    add_unit(children[i].key(), sequential->ptr(i), {}, {});
    state_->chain.push_back(
        {state_->units.size() - 1, [all = sequential.ptr(), i](torch::Tensor x) {
           return (all->begin() + static_cast<std::ptrdiff_t>(i))->forward(std::move(x));
         }});
  }
}

int FullyShardedDataParallel::unit_of(const torch::nn::Module& block) const {
  const auto found = std::ranges::find_if(
      state_->modules, [&block](const auto& module) { return module.get() == &block; });
  if (found == state_->modules.end()) {
    throw_if_failed(invalid_argument("forward() of a " + block.name() +
                                     " that is no unit; give it to shard() first"));
  }
  return static_cast<int>(found - state_->modules.begin());
}

void FullyShardedDataParallel::before_forward(int unit) {
  throw_if_failed(state_->units.check_views(unit));
  for (const auto& p : state_->modules[static_cast<std::size_t>(unit)]->named_parameters()) {
    if (state_->units.has(p.value())) continue;
    throw_if_failed(invalid_argument(
        "parameter '" + p.key() +
        "' came into the module after shard(), and would not be averaged; add it before"));
  }
  state_->loop->before_forward(unit);
}

void FullyShardedDataParallel::after_forward(int unit, const std::vector<torch::Tensor>& outputs) {
  state_->loop->after_forward(unit, outputs);
}

torch::Tensor FullyShardedDataParallel::cast_tensor(int unit, const torch::Tensor& t) const {
  const auto& type = state_->compute[static_cast<std::size_t>(unit)];
  return type.has_value() && t.defined() && t.is_floating_point() ? t.to(*type) : t;
}

torch::Tensor FullyShardedDataParallel::forward(torch::Tensor x) {
  if (state_->chain.empty()) {
    throw_if_failed(
        invalid_argument("forward(x) without a chain or sequential; call forward(block, x)"));
  }
  for (const State::Step& step : state_->chain) {
    before_forward(step.unit);
    x = step.run(cast_tensor(step.unit, x));
    after_forward(step.unit, {x});
  }
  const auto flats = state_->units.flats();
  return x.is_floating_point() && !flats.empty() ? x.to(flats.back()->own_type()) : x;
}

void FullyShardedDataParallel::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw_if_failed(
        invalid_argument("the weight must be a number >= 0, got " + std::to_string(weight)));
  }
  state_->loop->weight = weight;
}

FullyShardedDataParallel::NoSync::NoSync(FullyShardedDataParallel& fsdp)
    : enabled_(fsdp.state_->loop->synchronise), before_(std::exchange(enabled_, false)) {}

FullyShardedDataParallel::NoSync::~NoSync() { enabled_ = before_; }

void FullyShardedDataParallel::join_step() { state_->loop->join_step(); }

FullyShardedDataParallel::Gathered::Gathered(FullyShardedDataParallel& fsdp) : fsdp_(fsdp) {
  fsdp_.state_->loop->gather_all();
}

FullyShardedDataParallel::Gathered::~Gathered() { fsdp_.state_->loop->release_all(); }

void FullyShardedDataParallel::keep_gathered() { state_->loop->keep_gathered(); }

std::vector<NamedParameter> FullyShardedDataParallel::shards() const {
  std::vector<NamedParameter> out;
  for (const FlatParameter* flat : state_->units.flats()) {
    if (flat->trainable()) out.insert(out.end(), flat->pieces().begin(), flat->pieces().end());
  }
  return out;
}

std::unique_ptr<FusedOptimizer> FullyShardedDataParallel::make_optimizer(
    const OptimizerOptions& options) const {
  return make_optimizer(
      options,
      [&ranks = *state_->units.groups().shards](std::span<double> sums) {
        return add_up(ranks, sums);
      },
      [](const std::string&) { return true; });
}

std::unique_ptr<FusedOptimizer> FullyShardedDataParallel::make_optimizer(
    const OptimizerOptions& options, SumOverRanks sum,
    const std::function<bool(const std::string&)>& counts) const {
  std::vector<NamedParameter> parameters;
  std::vector<OwnedRange> owned;
  for (const FlatParameter* flat : state_->units.flats()) {
    if (!flat->trainable()) continue;
    const auto ranges = flat->owned();
    parameters.insert(parameters.end(), flat->parameters().begin(), flat->parameters().end());
    owned.insert(owned.end(), ranges.begin(), ranges.end());
  }
  for (std::size_t i = 0; i < owned.size(); ++i) owned[i].counts = counts(parameters[i].name);
  return std::make_unique<FusedOptimizer>(options, std::move(parameters), std::move(owned),
                                          std::move(sum));
}

void FullyShardedDataParallel::step(FusedOptimizer& optimizer, const StepRate& rate) {
  std::size_t first = 0;
  std::vector<TensorGradient> pieces;
  for (const FlatParameter* flat : state_->units.flats()) {
    if (!flat->trainable()) continue;
    for (TensorGradient& piece : flat->gradients()) {
      pieces.push_back({first + piece.parameter, std::move(piece.values)});
    }
    first += flat->parameters().size();
  }
  if (first != optimizer.parameters().size()) {
    throw_if_failed(invalid_argument("step(): the optimizer is not from make_optimizer()"));
  }
  throw_if_failed(optimizer.step(rate, pieces));
  state_->loop->did(plan::Value::kUpdated);
}

double FullyShardedDataParallel::squares(
    const std::function<bool(const std::string&)>& counts) const {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> sums;
  for (const FlatParameter* flat : state_->units.flats()) {
    for (const auto& piece : flat->gradients()) {
      if (!counts(flat->parameters()[piece.parameter].name)) continue;
      sums.push_back(train::squares(piece.values));
    }
  }
  return sum_of(sums);
}

double FullyShardedDataParallel::gradient_norm() const {
  double sum = squares([](const std::string&) { return true; });
  comm::Communicator& ranks = *state_->units.groups().shards;
  if (ranks.size() > 1) {
    throw_if_failed(add_up(ranks, std::span(&sum, 1)));
  }
  state_->loop->did(plan::Value::kNorm);
  return std::sqrt(sum);
}

double FullyShardedDataParallel::clip_gradients(double max_norm) {
  const double norm = gradient_norm();
  const double scale = clip_coefficient(norm, max_norm).take_or_throw();
  const torch::NoGradGuard no_grad;
  for (const FlatParameter* flat : state_->units.flats()) {
    if (scale >= 1) break;
    for (auto& piece : flat->gradients()) piece.values.mul_(scale);
  }
  state_->loop->did(plan::Value::kClipped);
  return norm;
}

void FullyShardedDataParallel::zero_grad() {
  state_->loop->after_update();
  for (FlatParameter* flat : state_->units.flats()) flat->drop_gradients();
}

std::vector<TensorPiece> FullyShardedDataParallel::state() const {
  std::vector<TensorPiece> out;
  for (const FlatParameter* flat : state_->units.flats()) {
    const auto pieces = flat->state();
    out.insert(out.end(), pieces.begin(), pieces.end());
  }
  return out;
}

bool FullyShardedDataParallel::has_first_copy() const {
  const comm::Communicator* const replicas = state_->units.groups().replicas;
  return replicas == nullptr || replicas->rank() == 0;
}

TensorMap FullyShardedDataParallel::shapes() const {
  TensorMap out;
  for (const FlatParameter* flat : state_->units.flats()) {
    const auto options = torch::TensorOptions(flat->own_type()).device(torch::kMeta);
    for (const NamedParameter& p : flat->parameters()) {
      out.emplace(p.name, torch::empty(p.tensor.sizes(), options));
    }
  }
  return out;
}

TensorMap FullyShardedDataParallel::buffers() const { return state_->buffers; }

void FullyShardedDataParallel::parameters_changed() { state_->loop->parameters_changed(); }

plan::StepPlan FullyShardedDataParallel::plan() const { return state_->loop->plan(); }

void FullyShardedDataParallel::on_action(DoneAction done) {
  state_->loop->on_action(std::move(done));
}

ShardingMemory FullyShardedDataParallel::memory_report(const FusedOptimizer* optimizer) const {
  ShardingMemory out;
  const ShardingOptions& options = state_->units.options();
  const int ranks = state_->units.groups().shards->size();
  std::int64_t slots = 0;
  if (optimizer != nullptr) {
    for (const TensorPiece& piece : optimizer->state_pieces()) {
      slots += static_cast<std::int64_t>(piece.values.nbytes());
    }
  }
  std::int64_t updated = 0;
  for (const NamedParameter& p : shards()) updated += p.tensor.numel();
  double predicted = 0;
  for (const FlatParameter* flat : state_->units.flats()) {
    const FlatParameter::Bytes bytes = flat->bytes();
    out.parameters += bytes.parameters;
    out.optimizer += bytes.master;
    out.gradients += bytes.gradients;
    parallel::StateBytesPerParameter each = flat->bytes_per_parameter();
    if (flat->trainable() && updated > 0) {
      each.optimizer += static_cast<double>(slots) / static_cast<double>(updated);
    }
    predicted += parallel::model_state_bytes(options.stage, ranks, flat->elements(), each);
  }
  out.optimizer += slots;
  out.predicted = std::llround(predicted);
  return out;
}

}  // namespace stormo::train
