#include <stormo/train/wrap/sync_batch_norm.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/functional/batchnorm.h>

#include <stormo/tensor/batch_norm.h>
#include <stormo/train/wrap/wrapped_parameters.h>

namespace stormo::train {
namespace {

/// Null unless `module` is a `BatchNorm`.
template <class BatchNorm>
std::shared_ptr<SyncBatchNormImpl> synced(const torch::nn::Module& module,
                                          const std::shared_ptr<SyncBatchNormGroup>& group) {
  const auto* norm = dynamic_cast<const BatchNorm*>(&module);
  if (norm == nullptr) return nullptr;
  const torch::NoGradGuard no_grad;
  auto out = std::make_shared<SyncBatchNormImpl>(norm->options, group);
  const auto take = [](torch::Tensor& to, const torch::Tensor& from) {
    if (!from.defined()) return;
    to.set_data(from.detach().clone());
    to.set_requires_grad(from.requires_grad());
  };
  take(out->weight, norm->weight);
  take(out->bias, norm->bias);
  take(out->running_mean, norm->running_mean);
  take(out->running_var, norm->running_var);
  take(out->num_batches_tracked, norm->num_batches_tracked);
  out->train(norm->is_training());
  return out;
}

std::shared_ptr<SyncBatchNormImpl> synced_any(const torch::nn::Module& module,
                                              const std::shared_ptr<SyncBatchNormGroup>& group) {
  if (auto out = synced<torch::nn::BatchNorm1dImpl>(module, group)) return out;
  if (auto out = synced<torch::nn::BatchNorm2dImpl>(module, group)) return out;
  return synced<torch::nn::BatchNorm3dImpl>(module, group);
}

/// The new layer has parameters of its own.
void check_not_wrapped(const torch::Tensor& parameter, const std::string& layer) {
  if (!WrappedParameters::is_wrapped(parameter)) return;
  throw Error(invalid_argument("SyncBatchNorm: '" + layer +
                               "' is wrapped by DistributedDataParallel, which would not average "
                               "what replaces it; convert first, then wrap"));
}

}  // namespace

SyncBatchNormGroup::SyncBatchNormGroup(comm::Communicator& world) {
  std::vector<Rank> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ranks_ = world.subgroup(everyone, Deadline::never()).take_or_throw();
}

void SyncBatchNormGroup::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(invalid_argument("SyncBatchNorm: the weight must be a number >= 0, got " +
                                 std::to_string(weight)));
  }
  weight_ = weight;
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& choices,
                                     std::shared_ptr<SyncBatchNormGroup> group)
    : NormImplBase(choices), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  if (input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features()) return;
  throw Error(invalid_argument("SyncBatchNorm: expected an input (N, " +
                               std::to_string(options.num_features()) +
                               ", ...) of 2 to 5 dimensions, got " + c10::str(input.sizes())));
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  if (!is_training()) {
    return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                     !options.track_running_stats(), 0,
                                                     options.eps());
  }
  return tensor::batch_norm(input, tensor::values_of(*this),
                            {.ranks = &group_->ranks(),
                             .who = "SyncBatchNorm",
                             .weight = [group = group_] { return group->weight(); }});
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "stormo::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << group_->ranks().size() << ")";
}

torch::nn::Sequential convert_sync_batch_norm(const torch::nn::Sequential& model,
                                              const std::shared_ptr<SyncBatchNormGroup>& group) {
  torch::nn::Sequential out;
  const auto names = model->named_children().keys();
  auto name = names.begin();
  for (const torch::nn::AnyModule& layer : *model) {
    const std::shared_ptr<torch::nn::Module> module = layer.ptr();
    if (auto norm = synced_any(*module, group)) {
      for (const torch::Tensor& p : module->parameters()) check_not_wrapped(p, *name);
      out->push_back(*name++, std::move(norm));
      continue;
    }
    for (const auto& inner : module->named_modules()) {
      if (synced_any(*inner.value(), group) == nullptr) continue;
      throw Error(invalid_argument("SyncBatchNorm: '" + *name + "' has a BatchNorm inside, '" +
                                   inner.key() +
                                   "', which only its own code can replace: give it a "
                                   "SyncBatchNorm there"));
    }
    out->push_back(*name++, layer);
  }
  return out;
}

}  // namespace stormo::train
