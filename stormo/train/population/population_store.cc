#include <stormo/train/population/population_store.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/optim/options.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/agreement/broadcast.h>

namespace stormo::train {
namespace {

/// Keys of residuals. Those that begin with a number are of one rank.
constexpr const char* kPopulation = "population";  // its members, its exchanges, updates
constexpr const char* kOwn = "0.";                 // before the name of a tensor

double comparable(double loss) {
  return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
}

}  // namespace

PopulationStore::PopulationStore(const AxisGroups& groups,
                                 std::unique_ptr<FusedOptimizer> optimizer)
    : ParameterStore(/*whole=*/false),
      groups_(groups),
      optimizer_(std::move(optimizer)),
      state_(*optimizer_) {
  set_population(this);
}

void PopulationStore::set_plan(const plan::StepPlan& plan) {
  const auto slots = static_cast<int>(optim::num_slots(optimizer_->options()));
  requests_ = analysis::PlanRequests(plan, {.averaged_slots = slots});
  for (const plan::Action& a : plan.actions) {
    if (!row_of(a.kind).of_population()) continue;
    const auto members = static_cast<int>(plan.mesh.group(0, a.axes).size());
    topology_ = plan::mixing_of(a.algorithm, members).take_or_throw();
    const bool lacks = std::exchange(lacks_copies_, false) && row_of(a.kind).copies;
    if (lacks && exchanges_ > 0) throw_if_error(take_copies(a, exchanges_ - 1));
  }
}

Status PopulationStore::update(const ParameterRange& range, const StepRate& rate) {
  has_best_ = false;
  ++updates_;
  return optimizer_->step(rate, range.first, range.last);
}

Status PopulationStore::perform(const plan::Action& action, double /*weight*/) {
  STORMO_RETURN_IF_ERROR(row_of(action.kind).selects ? play(action)
                                                     : take_copies(action, exchanges_));
  ++exchanges_;
  done(action);
  return {};
}

Result<std::vector<SentModel>> PopulationStore::exchange(const plan::Action& action,
                                                         std::int64_t round, const SentModel& own) {
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  return models_.exchange(*ranks, topology_.at(round), requests_.of(action), own);
}

// --- tournaments ---------------------------------------------------------------------------------

Status PopulationStore::play(const plan::Action& action) {
  const torch::NoGradGuard no_grad;
  const SentModel own = own_model();
  STORMO_ASSIGN_OR_RETURN(const std::vector<SentModel> others, exchange(action, exchanges_, own));
  const SentModel* best = &own;
  double least = comparable(judge_.in_tournament());
  for (const SentModel& other : others) {
    take(other);
    const double loss = comparable(judge_.in_tournament());
    if (!(loss < least)) continue;
    least = loss;
    best = &other;
  }
  take(*best);
  taken_ += best == &own ? 0 : 1;
  has_best_ = false;
  return {};
}

/// The steps of each parameter, weights, slots.
SentModel PopulationStore::own_model() {
  const std::vector<std::int64_t> steps = optimizer_->steps();
  SentModel out = {torch::tensor(steps, torch::kInt64).to(torch::kFloat64)};
  for (const AveragedState::Array& array : state_.arrays()) out.push_back(array.flat());
  return out;
}

void PopulationStore::take(const SentModel& model) {
  std::vector<AveragedState::Array> arrays = state_.arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i].take(model[i + 1]);
  const auto* const steps = model[0].const_data_ptr<double>();
  std::vector<double> sums = {1};
  sums.insert(sums.end(), steps, steps + model[0].numel());
  state_.end_average(sums);
}

// --- copies --------------------------------------------------------------------------------------

Status PopulationStore::take_copies(const plan::Action& action, std::int64_t round) {
  const torch::NoGradGuard no_grad;
  std::vector<AveragedState::Array> arrays = state_.weights();
  SentModel own = {torch::full({1}, updates_, torch::kInt64)};
  for (const AveragedState::Array& array : arrays) own.push_back(array.flat());
  STORMO_ASSIGN_OR_RETURN(const std::vector<SentModel> others, exchange(action, round, own));
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  const std::vector<Rank> from = senders_to(topology_.at(round), ranks->rank());
  copies_.clear();
  for (std::size_t n = 0; n < others.size(); ++n) {
    Copy& made = copies_.emplace_back();
    made.member = from[n];
    made.version = others[n][0].item<std::int64_t>();
    made.weights.resize(optimizer_->parameters().size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const std::vector<torch::Tensor> values = arrays[i].views_of(others[n][i + 1]);
      for (std::size_t k = 0; k < values.size(); ++k) {
        const std::size_t number = arrays[i].parameters()[k];
        const torch::Tensor& parameter = optimizer_->parameters()[number].tensor;
        made.weights[number] = values[k].view_as(parameter).to(parameter.scalar_type());
      }
    }
  }
  return {};
}

GatheredParameters PopulationStore::show(const Copy& copy) {
  const std::int64_t age = updates_ + 1 - copy.version;
  ++ages_.uses;
  ages_.sum += age;
  ages_.max = std::max(ages_.max, age);
  return show(copy.weights);
}

// --- the best member -----------------------------------------------------------------------------

Status PopulationStore::find_best() {
  if (has_best_) return {};
  Judge::Verdict mine = judge_.of_all();
  losses_.resize(at(groups_.world().size()));
  STORMO_RETURN_IF_ERROR(
      groups_.world().all_gather(comm::Buffer{&mine.loss, 1, DType::kFloat64}, losses_));
  const auto least = std::ranges::min_element(losses_, {}, comparable);
  best_ = static_cast<Rank>(least - losses_.begin());
  if (mine.predicted.defined()) STORMO_RETURN_IF_ERROR(compare(mine.predicted));
  has_best_ = true;
  return {};
}

Status PopulationStore::compare(const torch::Tensor& predicted) {
  const std::int64_t members = groups_.world().size();
  const torch::Tensor all = torch::empty({members, predicted.numel()}, predicted.options());
  STORMO_RETURN_IF_ERROR(
      groups_.world().all_gather(tensor::buffer_of(predicted), tensor::buffer_of(all)));
  double sum = 0;
  for (std::int64_t i = 0; i < members; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      sum += all[i].ne(all[j]).to(torch::kFloat64).mean().item<double>();
    }
  }
  churn_ = sum / static_cast<double>(members * (members - 1) / 2);
  return {};
}

GatheredParameters PopulationStore::gather() {
  throw_if_error(find_best());
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> named;
  std::vector<torch::Tensor> weights;
  for (const NamedParameter& p : optimizer_->parameters()) {
    const bool is_best = groups_.world().rank() == best_;
    weights.push_back(is_best ? p.tensor.detach() : torch::empty_like(p.tensor.detach()));
    named[p.name] = weights.back();
  }
  throw_if_error(broadcast_values(groups_.world(), named, best_));
  return show(weights);
}

GatheredParameters PopulationStore::show(const std::vector<torch::Tensor>& weights) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    torch::Tensor parameter = optimizer_->parameters()[i].tensor;
    own_.push_back(parameter.detach());
    parameter.set_data(weights[i]);
  }
  return {this, [](void* store) { static_cast<PopulationStore*>(store)->show_own(); }};
}

void PopulationStore::show_own() {
  for (std::size_t i = 0; i < own_.size(); ++i) {
    torch::Tensor parameter = optimizer_->parameters()[i].tensor;
    parameter.set_data(own_[i]);
  }
  own_.clear();
}

void PopulationStore::keep_values() {
  const GatheredParameters shown = own_.empty() ? gather() : nullptr;
  own_.clear();
}

// --- checkpoints ---------------------------------------------------------------------------------

torch::Tensor PopulationStore::own_weights(std::size_t parameter) const {
  return own_.empty() ? optimizer_->parameters()[parameter].tensor.detach() : own_[parameter];
}

std::vector<TensorPiece> PopulationStore::pieces() const {
  if (groups_.world().rank() != best_) return {};
  std::vector<TensorPiece> out = optimizer_->state_pieces();
  for (std::size_t i = 0; i < optimizer_->parameters().size(); ++i) {
    const torch::Tensor weights = own_weights(i);
    out.push_back({.name = optimizer_->parameters()[i].name,
                   .shape = weights.sizes().vec(),
                   .end = weights.numel(),
                   .values = weights.flatten()});
  }
  return out;
}

TensorMap PopulationStore::residuals() const {
  TensorMap out;
  const std::vector<std::int64_t> numbers = {groups_.world().size(), exchanges_, updates_};
  out[kPopulation] = torch::tensor(numbers, torch::kInt64);
  for (std::size_t i = 0; i < optimizer_->parameters().size(); ++i) {
    out[kOwn + optimizer_->parameters()[i].name] = own_weights(i).clone();
  }
  for (const TensorPiece& piece : optimizer_->state_pieces()) {
    out[kOwn + piece.name] = piece.values.clone();
  }
  return out;
}

void PopulationStore::keep_residuals(TensorMap kept) {
  const auto numbers = kept.find(kPopulation);
  if (numbers == kept.end()) return;
  const auto* const saved = numbers->second.const_data_ptr<std::int64_t>();
  if (saved[0] != groups_.world().size()) return;
  exchanges_ = saved[1];
  updates_ = saved[2];
  lacks_copies_ = true;
  const torch::NoGradGuard no_grad;
  for (const NamedParameter& p : optimizer_->parameters()) {
    torch::Tensor parameter = p.tensor;
    parameter.copy_(kept.at(kOwn + p.name).view_as(parameter));
  }
  const ReadState read = [&kept](const std::string& name, std::int64_t begin,
                                 std::int64_t end) -> Result<torch::Tensor> {
    const auto found = kept.find(kOwn + name);
    if (found == kept.end()) return torch::Tensor();
    return found->second.flatten().slice(0, begin, end);
  };
  throw_if_error(optimizer_->load_state(read));
}

}  // namespace stormo::train
