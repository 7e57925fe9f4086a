#include <stormo/train/store/averaged_state.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include <stormo/train/optimizer/tensor_update.h>

namespace stormo::train {

AveragedState::AveragedState(FusedOptimizer& optimizer, const Counts& counts)
    : optimizer_(optimizer) {
  for (const NamedParameter& p : optimizer_.parameters()) {
    counts_.push_back(!counts || counts(p.name));
  }
}

// As plan::flat_groups.
void AveragedState::add(std::vector<Array>& out, const std::vector<torch::Tensor>& all, bool counts,
                        std::size_t first, std::size_t last) const {
  std::map<std::pair<torch::ScalarType, bool>, std::size_t> array_of;
  for (std::size_t i = first; i < last; ++i) {
    const NamedParameter& p = optimizer_.parameters()[i];
    const auto [array, is_new] =
        array_of.try_emplace({p.tensor.scalar_type(), p.sparse}, out.size());
    if (is_new) out.emplace_back();
    Array& own = out[array->second];
    own.parameters_.push_back(i);
    own.values_.push_back(all[i]);
    own.counts_.push_back(counts && counts_[i]);
  }
}

std::vector<AveragedState::Array> AveragedState::weights(std::size_t first, std::size_t last) {
  std::vector<Array> out;
  add(out, optimizer_.values().weights, /*counts=*/true, first, last);
  return out;
}

const std::string& AveragedState::name_of(const Array& array) const {
  return optimizer_.parameters()[array.parameters().front()].name;
}

std::vector<AveragedState::Array> AveragedState::gradients() {
  std::vector<torch::Tensor> all;
  for (const NamedParameter& p : optimizer_.parameters()) {
    if (!p.tensor.grad().defined()) p.tensor.mutable_grad() = torch::zeros_like(p.tensor);
    all.push_back(p.tensor.grad());
  }
  std::vector<Array> out;
  add(out, all);
  return out;
}

std::vector<AveragedState::Array> AveragedState::slot(std::size_t number) {
  FusedOptimizer::Values values = optimizer_.values();
  std::vector<torch::Tensor>& slot = values.slots.at(number);
  for (std::size_t i = 0; i < slot.size(); ++i) {
    if (!slot[i].defined()) slot[i] = torch::zeros_like(values.weights[i]);
  }
  std::vector<Array> out;
  add(out, slot);
  return out;
}

std::vector<AveragedState::Array> AveragedState::slots() {
  std::vector<Array> out;
  for (std::size_t i = 0; i < optimizer_.values().slots.size(); ++i) {
    std::ranges::move(slot(i), std::back_inserter(out));
  }
  return out;
}

std::vector<AveragedState::Array> AveragedState::arrays() {
  std::vector<Array> out = weights();
  std::ranges::move(slots(), std::back_inserter(out));
  return out;
}

std::int64_t AveragedState::Array::elements() const {
  std::int64_t out = 0;
  for (const torch::Tensor& own : values_) out += own.numel();
  return out;
}

torch::Tensor AveragedState::Array::flat() const {
  torch::Tensor out = torch::empty({elements()}, values_.front().options().requires_grad(false));
  const std::vector<torch::Tensor> views = views_of(out);
  for (std::size_t i = 0; i < values_.size(); ++i) views[i].copy_(values_[i]);
  return out;
}

std::vector<torch::Tensor> AveragedState::Array::views_of(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> out;
  for (std::int64_t begin = 0; const torch::Tensor& own : values_) {
    out.push_back(flat.narrow(0, begin, own.numel()).view(own.sizes()));
    begin += own.numel();
  }
  return out;
}

double AveragedState::Array::squares_from(const torch::Tensor& flat) const {
  std::vector<torch::Tensor> squares;
  const std::vector<torch::Tensor> others = views_of(flat);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (counts_[i]) squares.push_back((values_[i] - others[i]).square().sum(torch::kFloat64));
  }
  return sum_of(squares);
}

double AveragedState::Array::take(const torch::Tensor& average) {
  const double squares = squares_from(average);
  const std::vector<torch::Tensor> others = views_of(average);
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i].copy_(others[i]);
  return squares;
}

std::vector<double> AveragedState::weighted_steps(double weight) const {
  std::vector<double> out{weight};
  for (const std::int64_t n : optimizer_.steps()) out.push_back(weight * static_cast<double>(n));
  return out;
}

void AveragedState::end_average(std::span<const double> sums) {
  std::vector<std::int64_t> steps = optimizer_.steps();
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = std::llround(sums[i + 1] / sums[0]);
  optimizer_.set_steps(steps);
  optimizer_.round_masters();
}

// A sum and then its factor, as AveragedStore does with all-reduces.
bool average_together(std::span<AveragedState* const> states, std::span<const double> weights) {
  const torch::NoGradGuard no_grad;
  std::vector<double> sums;
  std::vector<std::vector<AveragedState::Array>> arrays;  // by state
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::vector<double> terms = states[i]->weighted_steps(weights[i]);
    sums.resize(terms.size());
    std::ranges::transform(sums, terms, sums.begin(), std::plus());
    arrays.push_back(states[i]->arrays());
  }
  if (sums[0] == 0) return false;
  for (std::size_t a = 0; a < arrays.front().size(); ++a) {
    torch::Tensor mean;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const torch::Tensor term = arrays[i][a].flat().mul_(weights[i]);
      mean = mean.defined() ? mean.add_(term) : term;
    }
    mean.mul_(1 / sums[0]);
    for (std::vector<AveragedState::Array>& of_state : arrays) of_state[a].take(mean);
  }
  for (AveragedState* state : states) state->end_average(sums);
  return true;
}

}  // namespace stormo::train
