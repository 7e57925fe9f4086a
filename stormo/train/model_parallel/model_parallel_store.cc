#include <stormo/train/model_parallel/model_parallel_store.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/store/averaged_store.h>
#include <stormo/train/store/whole_norms.h>

namespace stormo::train {
namespace {

/// Whether the ranks of a replica add up gradients by themselves.
bool is_sum(const plan::Action& a) {
  return places(a, plan::Value::kGradients, plan::Placement::kStaged) ||
         places(a, plan::Value::kGradients, plan::Placement::kSplit);
}

/// The plan as replicas of a part see it.
plan::StepPlan without_sums(plan::StepPlan plan) {
  std::erase_if(plan.actions, is_sum);
  return plan;
}

}  // namespace

/// While it lives, all parameters that some segments read are whole.
class ModelParallelStore::Shown {
 public:
  Shown(ModelParallelStore& store, plan::Range segments) : store_(store), segments_(segments) {
    store_.gather(segments_);
  }
  ~Shown() { store_.release(segments_); }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  ModelParallelStore& store_;
  plan::Range segments_;
};

ModelParallelStore::ModelParallelStore(const AxisGroups& groups, const plan::StepPlan& plan,
                                       const std::shared_ptr<torch::nn::Module>& module,
                                       const OptimizerOptions& options,
                                       const parallel::OuterOptimizer& outer,
                                       const MaterializeSegment& bring, const Serve& serve,
                                       std::unique_ptr<Optimizer> kept)
    : ModelParallelStore(groups, plan, module) {  // from here on the destructor tidies up
  if (!optim::updates_ranges(options.kind)) {
    throw Error(
        invalid_argument("this optimizer needs all gradients in one place; ranks with parts of a "
                         "model have their own: use another optimizer"));
  }
  const auto parameters = module->named_parameters();
  if (static_cast<int>(parameters.size()) != num_parameters(plan.model)) {
    throw Error(Status(Code::kBadPlan, "the plan is for another model: it has " +
                                           std::to_string(num_parameters(plan.model)) +
                                           " parameters, the module " +
                                           std::to_string(parameters.size())));
  }
  const MaterializeSegment keep_part = [&](std::size_t s) {
    add_segment(plan.model, s, parameters, bring);
  };
  if (is_sharded_) {
    shard(plan, module, options, keep_part);
  } else {
    for (std::size_t s = 0; s < reads_.size(); ++s) keep_part(s);
    if (is_remote(plan)) {
      serve_part(plan, *module, serve);
    } else {
      replicate(plan, *module, options, outer, std::move(kept));
    }
  }
  own_->on_done([this](const plan::Action& a) { done(a); });
  set_served(own_->served());
  compute_alone(all(), false);
}

ModelParallelStore::ModelParallelStore(const AxisGroups& groups, const plan::StepPlan& plan,
                                       const std::shared_ptr<torch::nn::Module>& module)
    : ParameterStore(/*whole=*/false, /*always_readable=*/false),
      groups_(groups),
      axes_(model_axes(plan.mesh)),
      reads_(parameters_read(plan.model)),
      is_sharded_(plan.mesh.find(parallel::kShardAxis) >= 0),
      saves_(groups.is_source()) {
  if (plan.mesh.find(plan::kStageAxis) >= 0) {
    stage_ = stage_of(plan.mesh, groups.rank());
    link_.emplace(*groups.link().take_or_throw());
  }
  if (plan.mesh.find(plan::kTensorAxis) >= 0) {
    tensor_ = groups.over({plan::kTensorAxis}).take_or_throw();
    split_.emplace(*tensor_, plan.sequence_parallel);
    chain_ = std::dynamic_pointer_cast<model::Chain>(module);
  }
  set_cut({.stages = link_ ? &*link_ : nullptr, .split = split_ ? &*split_ : nullptr});
}

void ModelParallelStore::add_segment(
    const plan::ModelShape& model, std::size_t segment,
    const torch::OrderedDict<std::string, torch::Tensor>& parameters,
    const MaterializeSegment& bring) {
  take_slices();
  const plan::Stages stages(model);
  const std::size_t first = parameters_.size();
  const auto& shapes = model.segments[segment].parameters;
  std::vector<bool> had_memory;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    had_memory.push_back(tensor::has_memory(parameters[first + i].value()));
  }
  if (bring) bring(segment);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, tensor] = parameters[first + i].pair();
    numbers_.emplace(name, parameters_.size());
    Parameter& p = parameters_.emplace_back(
        Parameter{.named = {.name = name, .tensor = tensor},
                  .stages = stages.of_parameter(static_cast<int>(first + i)),
                  .came_without_memory = !had_memory[i],
                  .split = shapes[i].split,
                  .whole = tensor.sizes().vec()});
    // what is sharded becomes a view of a flat buffer
    const bool is_own_storage = tensor.storage().nbytes() == tensor.nbytes();
    p.has_storage = is_own_storage && !(is_sharded_ && has(p));
    if (!has(p)) {
      if (p.has_storage) tensor::set_memory(tensor, false);
    } else if (split_ && p.split.units > 0) {
      p.slice = tensor::slice(tensor, p.split, split_->part());
      p.named.tensor.set_data(p.slice);
    }
  }
}

void ModelParallelStore::replicate(const plan::StepPlan& plan, const torch::nn::Module& module,
                                   const OptimizerOptions& options,
                                   const parallel::OuterOptimizer& outer,
                                   std::unique_ptr<Optimizer> kept) {
  if (kept) {
    fused_ = dynamic_cast<FusedOptimizer*>(kept.get());  // of replicas there is no other kind
    auto replicas = std::make_unique<ReplicatedStore>(groups_, std::move(kept));
    replicas_ = replicas.get();
    own_ = std::move(replicas);
    return;
  }
  WholeNorms norms = whole_norms(groups_, plan);
  std::vector<NamedParameter> own;
  std::vector<OwnedRange> owned;
  for (const NamedParameter& p : trainable_parameters(module)) {
    if (!has(parameter(p.name))) continue;
    own.push_back(p);
    owned.push_back({.end = p.tensor.numel(), .counts = norms.counts(p.name)});
  }
  auto optimizer = std::make_unique<FusedOptimizer>(options, std::move(own), std::move(owned),
                                                    std::move(norms.sum));
  fused_ = optimizer.get();
  if (is_diverged(plan)) {
    own_ =
        std::make_unique<AveragedStore>(groups_, std::move(optimizer), outer,
                                        [this](const std::string& name) { return counts(name); });
    return;
  }
  auto replicas = std::make_unique<ReplicatedStore>(groups_, std::move(optimizer));
  replicas_ = replicas.get();
  own_ = std::move(replicas);
}

void ModelParallelStore::shard(const plan::StepPlan& plan,
                               const std::shared_ptr<torch::nn::Module>& module,
                               const OptimizerOptions& options,
                               const MaterializeSegment& keep_part) {
  auto shards = std::make_unique<ShardedStore>(groups_, module, plan, options, keep_part);
  shards_ = shards.get();
  own_ = std::move(shards);
  take_slices();
}

void ModelParallelStore::serve_part(const plan::StepPlan& plan, const torch::nn::Module& module,
                                    const Serve& serve) {
  std::vector<NamedParameter> part;
  for (const NamedParameter& p : trainable_parameters(module)) {
    if (counts(p.name) && p.tensor.numel() > 0) part.push_back(p);
  }
  std::unique_ptr<ServedStore> served = serve(std::move(part));
  served_ = served.get();
  fused_ = &served->optimizer();
  own_ = std::move(served);
  find_requests(project(plan, groups_.rank()));  // it is read before it is trained
}

// Slices that are sharded by now are views of a flat buffer: else their memory would stay. Those
// that servers have are what the last pull shows.
void ModelParallelStore::take_slices() {
  if (!is_sharded_ && served_ == nullptr) return;
  for (Parameter& p : parameters_) {
    if (p.slice.defined()) p.slice = p.named.tensor.detach();
  }
}

// A module whose parameters have no memory would crash whoever reads them. What came without
// memory goes without: there may be too little of it.
ModelParallelStore::~ModelParallelStore() {
  if (chain_ != nullptr) chain_->compute_with(nullptr);
  if (served_ != nullptr) own_.reset();  // it keeps the values that it shows
  if (kept_) return;
  for (Parameter& p : parameters_) {
    if (p.came_without_memory) {
      if (p.slice.defined()) {
        p.named.tensor.set_data(tensor::without_memory(p.whole, p.slice.scalar_type()));
      }
    } else if (p.slice.defined()) {
      p.named.tensor.set_data(torch::empty(p.whole, p.slice.options()));
    } else if (p.has_storage) {
      tensor::set_memory(p.named.tensor, true);
    }
  }
}

bool ModelParallelStore::has(const Parameter& p) const {
  return std::ranges::count(p.stages, stage()) > 0;
}

const ModelParallelStore::Parameter& ModelParallelStore::parameter(std::string_view name) const {
  return parameters_[numbers_.find(name)->second];
}

void ModelParallelStore::set_plan(const plan::StepPlan& plan) {
  own_->set_plan(without_sums(plan));
  find_requests(plan);
}

void ModelParallelStore::find_requests(const plan::StepPlan& own) {
  requests_ = analysis::PlanRequests(own, {}, stage());
  given_.clear();
  for (const plan::Action& a : own.actions) {
    if (!row_of(a.kind).takes_from(plan::Placement::kRemote)) continue;
    std::ranges::copy(requests_.of(a), std::back_inserter(given_));
  }
}

Status ModelParallelStore::perform(const plan::Action& action, double weight) {
  if (!is_sum(action)) {
    STORMO_RETURN_IF_ERROR(own_->perform(action, weight));
    set_consensus_squares(own_->consensus_squares());
    if (!row_of(action.kind).takes_from(plan::Placement::kRemote)) return {};
    take_slices();
    for (const analysis::Collective& values : requests_.of(action)) {
      STORMO_RETURN_IF_ERROR(give(values));
    }
    return {};
  }
  STORMO_RETURN_IF_ERROR(add_up_terms(action));
  done(action);
  return {};
}

// All stages cut a parameter that they read alike, so a rank has the same part of it as those of
// other stages with which it adds up.
torch::Tensor* ModelParallelStore::term_of(Parameter& p, bool tied) {
  if (tied && shards_ != nullptr) return shards_->gradient_of(p.named.name);
  torch::Tensor& gradient = p.named.tensor.mutable_grad();
  if (!gradient.defined()) {
    // ranks that computed the same samples have the same gradients, stages have their own
    if (!tied) return nullptr;
    gradient = torch::zeros_like(p.named.tensor);
  }
  gradient = gradient.contiguous();
  return &gradient;
}

Status ModelParallelStore::add_up_terms(const plan::Action& action) {
  const torch::NoGradGuard no_grad;
  const bool tied = places(action, plan::Value::kGradients, plan::Placement::kStaged);
  for (const analysis::Collective& sum : requests_.of(action)) {
    std::vector<comm::Buffer> terms;
    for (const int i : sum.in_place) {
      torch::Tensor* const term = term_of(parameters_[static_cast<std::size_t>(i)], tied);
      if (term == nullptr) continue;
      if (!groups_.gives(sum.stages)) term->zero_();
      terms.push_back(tensor::buffer_of(*term));
    }
    if (terms.empty()) continue;
    STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(sum.axes, sum.stages));
    STORMO_RETURN_IF_ERROR(perform_transfer(*ranks, sum, in_place(terms)));
  }
  return {};
}

Status ModelParallelStore::give(const analysis::Collective& values) {
  std::vector<comm::Buffer> buffers;
  std::int64_t elements = 0;
  for (const int i : values.in_place) {
    const torch::Tensor own = parameters_[static_cast<std::size_t>(i)].named.tensor.detach();
    buffers.push_back(values.dtype == DType::kUInt8 ? tensor::bytes_of(own)
                                                    : tensor::buffer_of(own));
    elements += buffers.back().count;
  }
  if (buffers.empty()) return {};
  STORMO_RETURN_IF_ERROR(check_elements(values, elements, buffers.front().dtype));
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks,
                          groups_.over(values.axes, values.stages));
  return perform_transfer(*ranks, values, in_place(buffers));
}

// Also of what another rank pushes.
void ModelParallelStore::zero_grad() {
  own_->zero_grad();
  if (served_ == nullptr) return;
  for (Parameter& p : parameters_) {
    if (has(p) && !counts(p.named.name)) p.named.tensor.mutable_grad().reset();
  }
}

// What several ranks have counts once.
Result<double> ModelParallelStore::squares() {
  const auto counted = [this](const std::string& name) { return counts(name); };
  if (shards_ != nullptr) return shards_->squares(counted);
  if (replicas_ != nullptr) STORMO_RETURN_IF_ERROR(replicas_->finish_gradients());
  return fused_->gradient_squares(counted);
}

Result<double> ModelParallelStore::gradient_norm() {
  STORMO_ASSIGN_OR_RETURN(double sum, squares());
  if (groups_.is_partial()) return norm_over_stages(sum);
  std::vector<std::string> over = axes_;
  if (shards_ != nullptr) over.emplace_back(parallel::kShardAxis);
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(over));
  STORMO_RETURN_IF_ERROR(add_up(*ranks, std::span(&sum, 1)));
  return std::sqrt(sum);
}

// Groups of different sizes add up in different orders. Here each has the squares of all stages,
// and adds them in theirs: so all ranks have the same bits.
Result<double> ModelParallelStore::norm_over_stages(double squares) const {
  std::vector<double> by_stage(static_cast<std::size_t>(num_stages(groups_.mesh())));
  if (groups_.gives()) by_stage[static_cast<std::size_t>(stage())] = squares;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(axes_));
  STORMO_RETURN_IF_ERROR(add_up(*ranks, by_stage));
  return std::sqrt(std::accumulate(by_stage.begin(), by_stage.end(), 0.0));
}

std::vector<std::size_t> ModelParallelStore::read_by(plan::Range segments) const {
  std::set<std::size_t> out;
  for (int s = segments.first; s <= segments.last; ++s) {
    for (const int p : reads_[static_cast<std::size_t>(s)]) {
      out.insert(static_cast<std::size_t>(p));
    }
  }
  return {out.begin(), out.end()};
}

void ModelParallelStore::gather(plan::Range segments) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::size_t> read = read_by(segments);
  whole_shards_ = own_->gather_segments(segments);
  if (served_ != nullptr) take_slices();
  for (const analysis::Collective& values : given_) {
    if (values.stages.empty()) throw_if_error(give(values));  // inside of this stage
  }
  if (split_) join_slices(read);
  compute_alone(segments, true);
  if (!link_) return;
  std::vector<std::vector<comm::Buffer>> by_owner(
      static_cast<std::size_t>(num_stages(groups_.mesh())));
  for (const std::size_t i : read) {
    const Parameter& p = parameters_[i];
    if (p.named.tensor.numel() == 0) continue;
    if (p.has_storage) tensor::set_memory(p.named.tensor, true);
    by_owner[static_cast<std::size_t>(p.stages.front())].push_back(
        tensor::buffer_of(p.named.tensor.detach()));
  }
  for (std::size_t owner = 0; owner < by_owner.size(); ++owner) {
    if (by_owner[owner].empty()) continue;
    const auto [ranks, root] = groups_.source_of(static_cast<int>(owner)).take_or_throw();
    throw_if_error(ranks->broadcast(by_owner[owner], root));
  }
}

void ModelParallelStore::join_slices(const std::vector<std::size_t>& parameters) {
  for (const std::size_t i : parameters) {
    Parameter& p = parameters_[i];
    if (!p.slice.defined()) continue;
    const std::int64_t unit = c10::multiply_integers(p.whole) / p.split.units;
    std::vector<torch::Tensor> slices;
    std::vector<std::int64_t> counts;
    for (int r = 0; r < tensor_->size(); ++r) {
      counts.push_back(plan::share(p.split, tensor_->size(), r).size() * unit);
    }
    const torch::Tensor all = torch::empty(c10::multiply_integers(p.whole), p.slice.options());
    throw_if_error(tensor_->all_gather(tensor::buffer_of(p.slice), tensor::buffer_of(all), counts));
    std::vector<std::int64_t> sizes = p.whole;
    for (const torch::Tensor& flat : all.split_with_sizes(counts)) {
      sizes[static_cast<std::size_t>(p.split.dim)] = -1;
      slices.push_back(flat.view(sizes));
    }
    p.named.tensor.set_data(tensor::join(slices, p.split));
  }
}

void ModelParallelStore::compute_alone(plan::Range segments, bool alone) {
  if (chain_ == nullptr) return;
  for (int s = segments.first; s <= segments.last; ++s) {
    chain_->segments()[static_cast<std::size_t>(s)]->compute_with(alone ? nullptr : cut().split);
  }
}

void ModelParallelStore::release(plan::Range segments) {
  if (kept_) return;
  for (const std::size_t i : read_by(segments)) {
    Parameter& p = parameters_[i];
    if (p.slice.defined()) p.named.tensor.set_data(p.slice);
    if (p.has_storage && !has(p)) tensor::set_memory(p.named.tensor, false);
  }
  whole_shards_.reset();
  compute_alone(segments, false);
}

GatheredParameters ModelParallelStore::gather_segments(plan::Range segments) {
  return std::make_shared<Shown>(*this, segments);
}

GatheredParameters ModelParallelStore::gather() { return gather_segments(all()); }

void ModelParallelStore::keep_values() {
  own_->keep_values();
  gather(all());
  kept_ = true;
}

}  // namespace stormo::train
