#include <stormo/train/store/model_parallel_store.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/plan/project.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {
namespace {

/// Keys of tied gradients; those of moves are below.
constexpr StageLink::Key kTied = StageLink::Key{1} << 63;

/// Memory of all elements, or none; sizes and strides stay.
void set_memory(const torch::Tensor& tensor, bool has) {
  const std::size_t bytes = has ? tensor.nbytes() : 0;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

/// Of a piece of its state: "optimizer.<slot>.<parameter>".
std::string_view parameter_of(std::string_view piece) {
  return piece.substr(piece.find('.', piece.find('.') + 1) + 1);
}

/// Whether a piece of state is one number, not of the form of its parameter.
bool is_step_count(std::string_view piece) { return piece.starts_with("optimizer.step."); }

/// The plan as replicas of one stage see it: stages add up tied gradients by themselves.
plan::StepPlan without_tied(plan::StepPlan plan) {
  std::erase_if(plan.actions,
                [](const plan::Action& a) { return a.kind == plan::ActionKind::kSumTied; });
  return plan;
}

}  // namespace

/// While it lives, all parameters are whole.
class ModelParallelStore::Whole {
 public:
  explicit Whole(ModelParallelStore& store) : store_(store) { store_.gather(); }
  ~Whole() { store_.release(); }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

 private:
  ModelParallelStore& store_;
};

ModelParallelStore::ModelParallelStore(const AxisGroups& groups, const plan::StepPlan& plan,
                                       const std::shared_ptr<torch::nn::Module>& module,
                                       const OptimizerOptions& options, const ReductionOptions& how)
    : groups_(groups),
      axes_(model_axes(plan.mesh)),
      saves_(copy_of_model(plan.mesh, groups.world().rank()).index == 0) {
  if (!optim::updates_ranges(options.kind)) {
    throw Error(
        invalid_argument("this optimizer needs all gradients in one place; ranks with parts of a "
                         "model have their own: use another optimizer"));
  }
  if (plan.mesh.find(plan::kStageAxis) >= 0) {
    pipeline_ = groups.over({plan::kStageAxis}).take_or_throw();
    link_.emplace(*pipeline_);
  }
  if (plan.mesh.find(plan::kTensorAxis) >= 0) {
    tensor_ = groups.over({plan::kTensorAxis}).take_or_throw();
    split_.emplace(*tensor_);
    chain_ = std::dynamic_pointer_cast<model::Chain>(module);
  }
  for (const plan::SegmentShape& s : plan.model.segments) segments_.emplace_back(s.name, s.stage);
  const plan::Stages stages(plan.model);
  const auto shapes = flatten(plan.model);
  for (const auto& p : module->named_parameters()) {
    const std::size_t number = numbers_.size();
    numbers_.emplace(p.key(), number);
    parameters_.push_back({.named = {.name = p.key(), .tensor = p.value()},
                           .stages = stages.of_parameter(static_cast<int>(number)),
                           .trainable = p.value().requires_grad(),
                           .has_storage = p.value().storage().nbytes() == p.value().nbytes(),
                           .split = shapes[number]->split,
                           .whole = p.value().sizes().vec()});
    Parameter& mine = parameters_.back();
    if (split_ && mine.split.units > 0 && has(mine)) {
      mine.slice = tensor::slice(p.value(), mine.split, split_->part());
      mine.named.tensor.set_data(mine.slice);
    }
  }
  std::vector<NamedParameter> own;
  for (const NamedParameter& p : trainable_parameters(*module)) {
    if (has(parameter(p.name))) own.push_back(p);
  }
  auto optimizer = std::make_unique<FusedOptimizer>(options, std::move(own));
  fused_ = optimizer.get();
  own_ = std::make_unique<ReplicatedStore>(groups, std::move(optimizer), how);
  own_->on_done([this](const plan::Action& a) { done(a); });
  release();
}

// A module whose parameters have no memory would crash whoever reads them.
ModelParallelStore::~ModelParallelStore() {
  if (chain_ != nullptr) chain_->compute_with(nullptr);
  if (kept_) return;
  for (Parameter& p : parameters_) {
    if (p.slice.defined()) {
      p.named.tensor.set_data(torch::empty(p.whole, p.slice.options()));
    } else if (p.has_storage) {
      set_memory(p.named.tensor, true);
    }
  }
}

bool ModelParallelStore::has(const Parameter& p) const {
  return std::ranges::count(p.stages, stage()) > 0;
}

const ModelParallelStore::Parameter& ModelParallelStore::parameter(std::string_view name) const {
  return parameters_[numbers_.find(name)->second];
}

Status ModelParallelStore::check(const plan::StepPlan& plan) const {
  return own_->check(without_tied(plan));
}

void ModelParallelStore::follow(const plan::StepPlan& plan) { own_->follow(without_tied(plan)); }

Status ModelParallelStore::perform(const plan::Action& action, double weight) {
  if (action.kind != plan::ActionKind::kSumTied) return own_->perform(action, weight);
  STORMO_RETURN_IF_ERROR(sum_tied(parameters_[static_cast<std::size_t>(action.range.first)]));
  done(action);
  return {};
}

// The owner adds up the terms in the order of stages, and gives every stage the sum.
Status ModelParallelStore::sum_tied(Parameter& p) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = p.named.tensor.mutable_grad();
  const StageLink::Key key = kTied | static_cast<StageLink::Key>(&p - parameters_.data());
  const torch::IntArrayRef like = p.named.tensor.sizes();
  const int owner = p.stages.front();
  if (!gradient.defined()) gradient = torch::zeros_like(p.named.tensor);
  if (!is_own(p)) {
    STORMO_RETURN_IF_ERROR(link_->send(owner, key, gradient, like));
    STORMO_RETURN_IF_ERROR(link_->expect(owner, key, like));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor sum, link_->receive(owner, key));
    gradient.copy_(sum);
    return {};
  }
  for (const int stage : p.stages) {
    if (stage == owner) continue;
    STORMO_RETURN_IF_ERROR(link_->expect(stage, key, like));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor term, link_->receive(stage, key));
    gradient.add_(term);
  }
  for (const int stage : p.stages) {
    if (stage != owner) STORMO_RETURN_IF_ERROR(link_->send(stage, key, gradient, like));
  }
  return {};
}

// What several ranks have counts once.
Result<double> ModelParallelStore::gradient_norm() {
  STORMO_ASSIGN_OR_RETURN(const double norm, own_->gradient_norm());
  double squares = norm * norm;
  for (const Parameter& p : parameters_) {
    if (!p.trainable || !has(p) || !p.named.tensor.grad().defined()) continue;
    if (is_own(p) && is_first(p)) continue;
    squares -= p.named.tensor.grad().to(torch::kFloat64).square().sum().item<double>();
  }
  squares = std::isfinite(squares) ? std::max(squares, 0.0) : squares;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const replica, groups_.over(axes_));
  STORMO_RETURN_IF_ERROR(replica->all_reduce(std::span<double>(&squares, 1), comm::ReduceOp::kSum));
  return std::sqrt(squares);
}

// Of the first replica, whose ranks are the first ones.
Rank ModelParallelStore::owner_of_buffer(const std::string& name) const {
  const int ranks_of_stage = split_ ? split_->part().parts : 1;
  for (const auto& [segment, stage] : segments_) {
    if (name.starts_with(segment + ".")) return stage * ranks_of_stage;
  }
  return 0;
}

void ModelParallelStore::gather() {
  const torch::NoGradGuard no_grad;
  if (split_) join_slices();
  if (pipeline_ == nullptr) return;
  std::vector<std::vector<comm::Buffer>> by_owner(static_cast<std::size_t>(pipeline_->size()));
  for (const Parameter& p : parameters_) {
    if (p.named.tensor.numel() == 0) continue;
    if (p.has_storage) set_memory(p.named.tensor, true);
    by_owner[static_cast<std::size_t>(p.stages.front())].push_back(
        tensor::buffer_of(p.named.tensor.detach()));
  }
  for (std::size_t owner = 0; owner < by_owner.size(); ++owner) {
    if (by_owner[owner].empty()) continue;
    throw_if_error(pipeline_->broadcast(by_owner[owner], static_cast<Rank>(owner)));
  }
}

void ModelParallelStore::join_slices() {
  for (Parameter& p : parameters_) {
    if (!p.slice.defined()) continue;
    const std::int64_t unit = c10::multiply_integers(p.whole) / p.split.units;
    std::vector<torch::Tensor> slices;
    std::vector<std::int64_t> counts;
    for (int i = 0; i < tensor_->size(); ++i) {
      counts.push_back(plan::share(p.split.units, tensor_->size(), i).size() * unit);
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
  if (chain_ != nullptr) chain_->compute_with(nullptr);
}

void ModelParallelStore::release() {
  if (kept_) return;
  for (Parameter& p : parameters_) {
    if (p.slice.defined()) p.named.tensor.set_data(p.slice);
    if (p.has_storage && !has(p)) set_memory(p.named.tensor, false);
  }
  if (chain_ != nullptr) chain_->compute_with(split_group());
}

std::shared_ptr<void> ModelParallelStore::readable() { return std::make_shared<Whole>(*this); }

void ModelParallelStore::keep_values() {
  gather();
  kept_ = true;
}

/// What this rank has of a tensor of the form of `p`: of a slice one piece for each of its blocks.
void ModelParallelStore::add_piece(std::vector<TensorPiece>& out, const Parameter& p,
                                   TensorPiece piece) const {
  if (!p.slice.defined() || is_step_count(piece.name)) {
    out.push_back(std::move(piece));
    return;
  }
  const auto dim = static_cast<std::size_t>(p.split.dim);
  const std::int64_t in_block = p.whole[dim] / p.split.blocks, unit = in_block / p.split.units;
  const plan::Share mine = split_->share(p.split.units);
  const torch::Tensor blocks =
      piece.values.view(p.slice.sizes()).unflatten(p.split.dim, {p.split.blocks, -1});
  for (int b = 0; b < p.split.blocks; ++b) {
    checkpoint::Box box{std::vector<std::int64_t>(p.whole.size()), p.whole};
    box.offsets[dim] = b * in_block + mine.begin * unit;
    box.sizes[dim] = mine.size() * unit;
    out.push_back({.name = piece.name,
                   .shape = p.whole,
                   .values = blocks.select(p.split.dim, b).flatten(),
                   .box = std::move(box)});
  }
}

std::vector<TensorPiece> ModelParallelStore::pieces() const {
  std::vector<TensorPiece> out;
  if (!saves_) return out;
  for (const Parameter& p : parameters_) {
    if (!is_own(p) || !is_first(p)) continue;
    const torch::Tensor values = p.slice.defined() ? p.slice : p.named.tensor.detach();
    add_piece(out, p,
              {.name = p.named.name,
               .shape = values.sizes().vec(),
               .begin = 0,
               .end = values.numel(),
               .values = values.flatten()});
  }
  for (TensorPiece& piece : fused_->state_pieces()) {
    const Parameter& p = parameter(parameter_of(piece.name));
    const bool is_equal = is_step_count(piece.name);  // on all ranks of a stage
    const bool counts = is_equal ? !split_ || split_->part().index == 0 : is_first(p);
    if (is_own(p) && counts) add_piece(out, p, std::move(piece));
  }
  return out;
}

Status ModelParallelStore::load_state(const ReadState& read) {
  return fused_->load_state([&](const std::string& name, std::int64_t begin,
                                std::int64_t end) -> Result<torch::Tensor> {
    const Parameter& p = parameter(parameter_of(name));
    if (!p.slice.defined() || is_step_count(name)) return read(name, begin, end);
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor all,
                            read(name, 0, c10::multiply_integers(p.whole)));
    if (!all.defined()) return all;
    return tensor::slice(all.view(p.whole), p.split, split_->part()).flatten().slice(0, begin, end);
  });
}

}  // namespace stormo::train
