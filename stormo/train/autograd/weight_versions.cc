// Several versions of parameters.
//
// Idea: a parameter is a tensor object and its memory. An update writes to new memory, which the
// object then points to. Of a parameter a graph has kept the object, or a view of its old memory:
// while a backward runs, the objects point to the memory with which its forward was computed. Each
// version has a counter of changes of its own, so autograd still notices a change in place. Paper:
// D. Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019,
// section 3.3.
#include <stormo/train/autograd/weight_versions.h>

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/variable.h>

namespace stormo::train {

WeightVersions::WeightVersions(std::vector<torch::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  auto values = std::make_shared<Values>();
  for (const torch::Tensor& p : parameters_) {
    original_.push_back(p.variable_data());
    values->counters.push_back(torch::autograd::impl::version_counter(p));
  }
  values->tensors = original_;
  newest_ = std::move(values);
}

void WeightVersions::begin_update(std::size_t first, std::size_t last) {
  const torch::NoGradGuard no_grad;
  std::erase_if(older_, [](const auto& version) { return version.expired(); });
  if (newest_.use_count() > 1) older_.push_back(newest_);
  auto next = std::make_shared<Values>(*newest_);
  ++next->number;
  for (std::size_t i = first; i < last; ++i) {
    const torch::Tensor& now = newest_->tensors[i];
    if (!is_held(i, now)) continue;
    next->tensors[i] = is_held(i, original_[i]) ? now.clone() : original_[i].copy_(now);
    next->counters[i] = c10::VariableVersion(0);
  }
  newest_ = std::move(next);
  show(*newest_);
}

/// Whether the memory is that of a parameter in a version that somebody holds.
bool WeightVersions::is_held(std::size_t parameter, const torch::Tensor& memory) const {
  return std::ranges::any_of(older_, [&](const auto& version) {
    const Version held = version.lock();
    return held != nullptr && held->tensors[parameter].is_alias_of(memory);
  });
}

void WeightVersions::drain() {
  const torch::NoGradGuard no_grad;
  auto values = std::make_shared<Values>(*newest_);
  for (std::size_t i = 0; i < original_.size(); ++i) {
    if (!original_[i].is_alias_of(values->tensors[i])) original_[i].copy_(values->tensors[i]);
  }
  values->tensors = original_;
  newest_ = std::move(values);
  show(*newest_);
}

void WeightVersions::show(const Values& values) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].is_alias_of(values.tensors[i])) parameters_[i].set_data(values.tensors[i]);
    torch::autograd::impl::set_version_counter(parameters_[i], values.counters[i]);
  }
}

WeightVersions::Use::Use(WeightVersions* versions, const Version& version) {
  if (versions == nullptr || version == nullptr || version == versions->newest_) return;
  versions_ = versions;
  versions_->show(*version);
}

WeightVersions::Use::~Use() {
  if (versions_ != nullptr) versions_->show(*versions_->newest_);
}

UncountedChange::UncountedChange(std::vector<torch::Tensor> tensors)
    : tensors_(std::move(tensors)) {
  for (const torch::Tensor& t : tensors_) {
    counters_.push_back(torch::autograd::impl::version_counter(t));
    torch::autograd::impl::set_version_counter(t, c10::VariableVersion(0));
  }
}

UncountedChange::~UncountedChange() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    torch::autograd::impl::set_version_counter(tensors_[i], counters_[i]);
  }
}

}  // namespace stormo::train
