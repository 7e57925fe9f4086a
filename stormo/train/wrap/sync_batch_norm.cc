#include <stormo/train/wrap/sync_batch_norm.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <stormo/tensor/bridge.h>

namespace stormo::train {
namespace {

namespace autograd = torch::autograd;

/// Per channel, in float64, of all ranks' samples.
struct GlobalMoments {
  double count = 0;
  torch::Tensor mean;
  torch::Tensor squares;  // sum of squared differences from the mean
};

GlobalMoments exchange_moments(const torch::Tensor& x, comm::Communicator& ranks) {
  const std::int64_t channels = x.size(1);
  torch::Tensor mine = torch::zeros({1 + 2 * channels}, torch::kFloat64);
  if (x.numel() > 0) {
    const auto [mean, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
    const auto count = static_cast<double>(x.numel() / channels);
    mine[0] = count;
    mine.narrow(0, 1, channels).copy_(mean);
    mine.narrow(0, 1 + channels, channels).copy_(variance).mul_(count);
  }
  torch::Tensor all = torch::empty({ranks.size(), mine.numel()}, torch::kFloat64);
  throw_if_error(
      ranks.all_gather(tensor::buffer_of(mine), tensor::buffer_of(all)).within("SyncBatchNorm"));

  const torch::Tensor counts = all.narrow(1, 0, 1);
  const torch::Tensor means = all.narrow(1, 1, channels);
  const torch::Tensor squares = all.narrow(1, 1 + channels, channels);
  GlobalMoments out;
  out.count = counts.sum().item<double>();
  if (out.count < 2) {
    throw Error(
        invalid_argument("SyncBatchNorm: training needs two values per channel, all ranks "
                         "together have " +
                         std::to_string(static_cast<std::int64_t>(out.count))));
  }
  out.mean = (counts * means).sum(0) / out.count;
  out.squares = (squares + counts * (means - out.mean).square()).sum(0);
  return out;
}

struct Normalisation : torch::CustomClassHolder {
  std::shared_ptr<SyncBatchNormGroup> group;
  double count = 0;
  double eps = 0;
  torch::Tensor mean, variance;  // of the input's type
};

struct Normalise : autograd::Function<Normalise> {
  static torch::Tensor forward(autograd::AutogradContext* context, const torch::Tensor& x,
                               const std::optional<torch::Tensor>& weight,
                               const std::optional<torch::Tensor>& bias,
                               const c10::intrusive_ptr<Normalisation>& by) {
    context->save_for_backward({x, weight.value_or(torch::Tensor())});
    context->saved_data["by"] = c10::IValue::make_capsule(by);
    if (x.numel() == 0) return torch::empty_like(x);
    return std::get<0>(
        at::native_batch_norm(x, weight, bias, by->mean, by->variance, false, 0, by->eps));
  }

  // With S the sum over all samples of all ranks and x' the normalised x:
  // dx = weight / deviation * (dy - S(dy) / count - x' S(dy x') / count).
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    if (torch::GradMode::is_enabled()) {
      throw Error(invalid_argument(
          "SyncBatchNorm: gradients of gradients are not computed; call backward() without "
          "create_graph"));
    }
    const auto by =
        c10::static_intrusive_pointer_cast<Normalisation>(context->saved_data["by"].toCapsule());
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &dy = gradients.front();
    const std::int64_t channels = x.size(1);

    torch::Tensor of_weight = torch::zeros({channels}, x.options());
    torch::Tensor of_bias = torch::zeros({channels}, x.options());
    if (x.numel() > 0) {
      std::tie(std::ignore, of_weight, of_bias) = at::native_batch_norm_backward(
          dy, x, weight, by->mean, by->variance, {}, {}, false, by->eps, {false, true, true});
    }
    const double share = by->group->weight();
    torch::Tensor sums = torch::stack({of_bias, of_weight}).to(torch::kFloat64).mul_(share);
    throw_if_error(by->group->ranks()
                       .all_reduce(tensor::buffer_of(sums), comm::ReduceOp::kSum)
                       .within("SyncBatchNorm"));
    torch::Tensor of_x;
    if (context->needs_input_grad(0)) {
      sums.mul_(share > 0 ? 1 / (share * by->count) : 0);
      std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
      shape[1] = channels;
      const auto per_channel = [&](const torch::Tensor& t) {
        return t.to(x.scalar_type()).view(shape);
      };
      const torch::Tensor scale = (by->variance.to(torch::kFloat64) + by->eps).rsqrt();
      of_x = dy.sub(per_channel(sums[0]))
                 .addcmul_(x - per_channel(by->mean), per_channel(scale * sums[1]), -1)
                 .mul_(per_channel(weight.defined() ? scale * weight : scale));
    }
    if (!weight.defined()) return {of_x, {}, {}, {}};
    return {of_x, of_weight, of_bias, {}};
  }
};

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
  const bool wide = input.scalar_type() == torch::kFloat64;
  const torch::ScalarType type = wide ? torch::kFloat64 : torch::kFloat32;
  const torch::Tensor x = input.to(type);
  const auto by = c10::make_intrusive<Normalisation>();
  {
    const torch::NoGradGuard no_grad;
    const GlobalMoments moments = exchange_moments(x, group_->ranks());
    by->group = group_;
    by->count = moments.count;
    by->eps = options.eps();
    by->mean = moments.mean.to(type);
    by->variance = (moments.squares / moments.count).to(type);
    if (options.track_running_stats()) {
      num_batches_tracked += 1;
      const double share = options.momentum().value_or(1 / num_batches_tracked.item<double>());
      running_mean.mul_(1 - share).add_(moments.mean.to(running_mean.scalar_type()), share);
      running_var.mul_(1 - share).add_(
          (moments.squares / (moments.count - 1)).to(running_var.scalar_type()), share);
    }
  }
  const auto of_type = [type](const torch::Tensor& t) {
    return t.defined() ? std::optional(t.to(type)) : std::nullopt;
  };
  return Normalise::apply(x, of_type(weight), of_type(bias), by).to(input.scalar_type());
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
