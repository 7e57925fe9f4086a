#include <stormo/train/store/staged_store.h>

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

/// The plan as replicas of one stage see it: stages add up tied gradients by themselves.
plan::StepPlan without_tied(plan::StepPlan plan) {
  std::erase_if(plan.actions,
                [](const plan::Action& a) { return a.kind == plan::ActionKind::kSumTied; });
  return plan;
}

}  // namespace

/// While it lives, all parameters are whole.
class StagedStore::Whole {
 public:
  explicit Whole(StagedStore& store) : store_(store) { store_.gather(); }
  ~Whole() { store_.release(); }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

 private:
  StagedStore& store_;
};

StagedStore::StagedStore(const AxisGroups& groups, const plan::StepPlan& plan,
                         const std::shared_ptr<torch::nn::Module>& module,
                         const OptimizerOptions& options, const ReductionOptions& how)
    : pipeline_(*groups.over({plan::kStageAxis}).take_or_throw()),
      link_(pipeline_),
      saves_(data_part(plan.mesh, groups.world().rank()).index == 0) {
  if (!optim::updates_ranges(options.kind)) {
    throw Error(
        invalid_argument("this optimizer needs all gradients in one place; stages of a "
                         "pipeline have their own: use another optimizer"));
  }
  for (const plan::SegmentShape& s : plan.model.segments) segments_.emplace_back(s.name, s.stage);
  const plan::Stages stages(plan.model);
  std::vector<NamedParameter> own;
  for (const auto& p : module->named_parameters()) {
    const int number = static_cast<int>(parameters_.size());
    parameters_.push_back({.named = {.name = p.key(), .tensor = p.value()},
                           .stages = stages.of_parameter(number),
                           .trainable = p.value().requires_grad(),
                           .has_storage = p.value().storage().nbytes() == p.value().nbytes()});
  }
  for (const NamedParameter& p : trainable_parameters(*module)) {
    const auto mine =
        std::ranges::find(parameters_, p.name, [](const Parameter& q) { return q.named.name; });
    if (has(*mine)) own.push_back(p);
  }
  auto optimizer = std::make_unique<FusedOptimizer>(options, std::move(own));
  fused_ = optimizer.get();
  own_ = std::make_unique<ReplicatedStore>(groups, std::move(optimizer), how);
  own_->on_done([this](const plan::Action& a) { done(a); });
  release();
}

StagedStore::~StagedStore() {
  // a module whose parameters have no memory would crash whoever reads them
  if (!kept_) {
    for (const Parameter& p : parameters_) {
      if (p.has_storage) set_memory(p.named.tensor, true);
    }
  }
}

bool StagedStore::has(const Parameter& p) const {
  return std::ranges::count(p.stages, link_.stage()) > 0;
}
bool StagedStore::is_own(const Parameter& p) const { return p.stages.front() == link_.stage(); }

Status StagedStore::check(const plan::StepPlan& plan) const {
  return own_->check(without_tied(plan));
}

void StagedStore::follow(const plan::StepPlan& plan) { own_->follow(without_tied(plan)); }

Status StagedStore::perform(const plan::Action& action, double weight) {
  if (action.kind != plan::ActionKind::kSumTied) return own_->perform(action, weight);
  STORMO_RETURN_IF_ERROR(sum_tied(parameters_[static_cast<std::size_t>(action.range.first)]));
  done(action);
  return {};
}

// The owner adds up the terms in the order of stages, and gives every stage the sum.
Status StagedStore::sum_tied(Parameter& p) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = p.named.tensor.mutable_grad();
  const StageLink::Key key = kTied | static_cast<StageLink::Key>(&p - parameters_.data());
  const torch::IntArrayRef like = p.named.tensor.sizes();
  const int owner = p.stages.front();
  if (!gradient.defined()) gradient = torch::zeros_like(p.named.tensor);
  if (!is_own(p)) {
    STORMO_RETURN_IF_ERROR(link_.send(owner, key, gradient, like));
    STORMO_RETURN_IF_ERROR(link_.expect(owner, key, like));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor sum, link_.receive(owner, key));
    gradient.copy_(sum);
    return {};
  }
  for (const int stage : p.stages) {
    if (stage == owner) continue;
    STORMO_RETURN_IF_ERROR(link_.expect(stage, key, like));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor term, link_.receive(stage, key));
    gradient.add_(term);
  }
  for (const int stage : p.stages) {
    if (stage != owner) STORMO_RETURN_IF_ERROR(link_.send(stage, key, gradient, like));
  }
  return {};
}

Result<double> StagedStore::gradient_norm() {
  STORMO_ASSIGN_OR_RETURN(const double norm, own_->gradient_norm());
  double squares = norm * norm;
  for (const Parameter& p : parameters_) {  // counted by their owners
    if (!p.trainable || !has(p) || is_own(p) || !p.named.tensor.grad().defined()) continue;
    squares -= p.named.tensor.grad().to(torch::kFloat64).square().sum().item<double>();
  }
  squares = std::isfinite(squares) ? std::max(squares, 0.0) : squares;
  STORMO_RETURN_IF_ERROR(
      pipeline_.all_reduce(std::span<double>(&squares, 1), comm::ReduceOp::kSum));
  return std::sqrt(squares);
}

// Of the first replica, whose ranks are the first ones.
Rank StagedStore::owner_of_buffer(const std::string& name) const {
  for (const auto& [segment, stage] : segments_) {
    if (name.starts_with(segment + ".")) return stage;
  }
  return 0;
}

void StagedStore::gather() {
  const torch::NoGradGuard no_grad;
  std::vector<std::vector<comm::Buffer>> by_owner(static_cast<std::size_t>(link_.num_stages()));
  for (const Parameter& p : parameters_) {
    if (p.named.tensor.numel() == 0) continue;
    if (p.has_storage) set_memory(p.named.tensor, true);
    by_owner[static_cast<std::size_t>(p.stages.front())].push_back(
        tensor::buffer_of(p.named.tensor.detach()));
  }
  for (std::size_t owner = 0; owner < by_owner.size(); ++owner) {
    if (by_owner[owner].empty()) continue;
    throw_if_error(pipeline_.broadcast(by_owner[owner], static_cast<Rank>(owner)));
  }
}

void StagedStore::release() {
  if (kept_) return;
  for (const Parameter& p : parameters_) {
    if (p.has_storage && !has(p)) set_memory(p.named.tensor, false);
  }
}

std::shared_ptr<void> StagedStore::readable() { return std::make_shared<Whole>(*this); }

void StagedStore::keep_values() {
  gather();
  kept_ = true;
}

std::vector<TensorPiece> StagedStore::pieces() const {
  std::vector<TensorPiece> out;
  if (!saves_) return out;
  for (const Parameter& p : parameters_) {
    if (!is_own(p)) continue;
    const torch::Tensor values = p.named.tensor.detach();
    out.push_back({.name = p.named.name,
                   .shape = values.sizes().vec(),
                   .begin = 0,
                   .end = values.numel(),
                   .values = values.flatten()});
  }
  for (TensorPiece& piece : fused_->state_pieces()) {
    const bool tied = std::ranges::any_of(parameters_, [&](const Parameter& p) {
      return has(p) && !is_own(p) && parameter_of(piece.name) == p.named.name;
    });
    if (!tied) out.push_back(std::move(piece));
  }
  return out;
}

Status StagedStore::load_state(const ReadState& read) { return fused_->load_state(read); }

}  // namespace stormo::train
