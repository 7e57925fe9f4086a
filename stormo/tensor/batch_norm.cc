#include <stormo/tensor/batch_norm.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/addcmul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stormo/tensor/bridge.h>

namespace stormo::tensor {
namespace {

namespace autograd = torch::autograd;

/// Per channel, in float64, of all ranks' samples.
struct GlobalMoments {
  double count = 0;
  torch::Tensor mean;
  torch::Tensor squares;  // sum of squared differences from the mean
};

GlobalMoments exchange_moments(const torch::Tensor& x, const NormRanks& over) {
  const std::int64_t channels = x.size(1);
  torch::Tensor mine = torch::zeros({1 + 2 * channels}, torch::kFloat64);
  if (x.numel() > 0) {
    const auto [mean, variance] = at::batch_norm_update_stats(x, {}, {}, 0);
    const auto count = static_cast<double>(x.numel() / channels);
    mine[0] = count;
    mine.narrow(0, 1, channels).copy_(mean);
    mine.narrow(0, 1 + channels, channels).copy_(variance).mul_(count);
  }
  torch::Tensor all = mine.unsqueeze(0);
  if (over.ranks != nullptr) {
    all = torch::empty({over.ranks->size(), mine.numel()}, torch::kFloat64);
    throw_if_error(over.ranks->all_gather(buffer_of(mine), buffer_of(all)).within(over.who));
  }

  const torch::Tensor counts = all.narrow(1, 0, 1);
  const torch::Tensor means = all.narrow(1, 1, channels);
  const torch::Tensor squares = all.narrow(1, 1 + channels, channels);
  GlobalMoments out;
  out.count = counts.sum().item<double>();
  if (out.count < 2) {
    throw Error(invalid_argument(
        over.who + ": training needs two values per channel, all ranks together have " +
        std::to_string(static_cast<std::int64_t>(out.count))));
  }
  out.mean = (counts * means).sum(0) / out.count;
  out.squares = (squares + counts * (means - out.mean).square()).sum(0);
  return out;
}

struct Normalisation : torch::CustomClassHolder {
  NormRanks over;
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
          "batch normalisation over ranks: gradients of gradients are not computed; call "
          "backward() without create_graph"));
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
    const double share = by->over.weight();
    torch::Tensor sums = torch::stack({of_bias, of_weight}).to(torch::kFloat64).mul_(share);
    if (by->over.ranks != nullptr) {
      throw_if_error(
          by->over.ranks->all_reduce(buffer_of(sums), comm::ReduceOp::kSum).within(by->over.who));
    }
    torch::Tensor of_x;
    if (context->needs_input_grad(0)) {
      sums.mul_(share > 0 ? 1 / (share * by->count) : 0);
      std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
      shape[1] = channels;
      const auto per_channel = [&](const torch::Tensor& t) {
        return t.to(x.scalar_type()).view(shape);
      };
      // per channel a factor of dy, one of x, and a constant: two passes
      const torch::Tensor scale = (by->variance.to(torch::kFloat64) + by->eps).rsqrt();
      const torch::Tensor of_dy = weight.defined() ? scale * weight : scale;
      const torch::Tensor of_values = of_dy * scale * sums[1];
      const torch::Tensor constant = of_values * by->mean - of_dy * sums[0];
      of_x = at::addcmul(per_channel(constant), x, per_channel(of_values), -1)
                 .addcmul_(dy, per_channel(of_dy));
    }
    if (!weight.defined()) return {of_x, {}, {}, {}};
    return {of_x, of_weight, of_bias, {}};
  }
};

}  // namespace

torch::Tensor batch_norm(const torch::Tensor& input, const NormValues& values,
                         const NormRanks& over) {
  const bool wide = input.scalar_type() == torch::kFloat64;
  const torch::ScalarType type = wide ? torch::kFloat64 : torch::kFloat32;
  const torch::Tensor x = input.to(type);
  const auto by = c10::make_intrusive<Normalisation>();
  {
    const torch::NoGradGuard no_grad;
    const GlobalMoments moments = exchange_moments(x, over);
    by->over = over;
    by->count = moments.count;
    by->eps = values.eps;
    by->mean = moments.mean.to(type);
    by->variance = (moments.squares / moments.count).to(type);
    if (values.running_mean.defined()) {
      torch::Tensor batches = values.num_batches_tracked;
      batches += 1;
      const double share = values.momentum.value_or(1 / batches.item<double>());
      const auto follow = [share](torch::Tensor to, const torch::Tensor& from) {
        to.mul_(1 - share).add_(from.to(to.scalar_type()), share);
      };
      follow(values.running_mean, moments.mean);
      follow(values.running_var, moments.squares / (moments.count - 1));
    }
  }
  const auto of_type = [type](const torch::Tensor& t) {
    return t.defined() ? std::optional(t.to(type)) : std::nullopt;
  };
  return Normalise::apply(x, of_type(values.weight), of_type(values.bias), by)
      .to(input.scalar_type());
}

}  // namespace stormo::tensor
