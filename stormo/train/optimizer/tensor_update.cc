#include <stormo/train/optimizer/tensor_update.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

namespace stormo::train {
namespace {

using optim::Options;
using optim::UpdateStep;
using torch::Tensor;

Tensor scaled(const Tensor& gradient, const UpdateStep& step) {
  return step.gradient_scale == 1 ? gradient : gradient.mul(step.gradient_scale);
}

/// With an L2 penalty.
Tensor penalised(const Options& o, const Tensor& gradient, const Tensor& weights) {
  return o.weight_decay == 0 ? gradient : gradient.add(weights, o.weight_decay);
}

double correction(double beta, const UpdateStep& step) {
  return 1 - std::pow(beta, static_cast<double>(step.number));
}

/// Of Adam, AdamW and LAMB.
void advance_moments(const Options& o, const Tensor& g, TensorUpdate& of) {
  of.slots[0].lerp_(g, 1 - o.beta1);
  of.slots[1].mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
}

/// exp_avg / (sqrt(exp_avg_sq / correction) + epsilon)
Tensor quotient(const Options& o, const UpdateStep& step, const TensorUpdate& of) {
  const double root = std::sqrt(correction(o.beta2, step));
  return of.slots[0].div(of.slots[1].sqrt().div_(root).add_(o.epsilon));
}

/// The update of LAMB before it is scaled.
Tensor lamb_direction(const Options& o, const UpdateStep& step, const TensorUpdate& of) {
  return quotient(o, step, of).div_(correction(o.beta1, step)).add_(of.weights, o.weight_decay);
}

void adam(const Options& o, const UpdateStep& step, Tensor g, TensorUpdate& of) {
  if (o.kind == Options::Kind::kAdamW) {
    of.weights.mul_(1 - step.lr * o.weight_decay);
  } else {
    g = penalised(o, g, of.weights);
  }
  advance_moments(o, g, of);
  of.weights.add_(quotient(o, step, of), -step.lr / correction(o.beta1, step));
}

void sgd(const Options& o, const UpdateStep& step, const Tensor& g, TensorUpdate& of) {
  Tensor direction = penalised(o, g, of.weights);
  if (o.momentum != 0) {
    of.slots[0].mul_(o.momentum).add_(direction);
    direction = o.nesterov ? direction.add(of.slots[0], o.momentum) : of.slots[0];
  }
  of.weights.add_(direction, -step.lr);
}

void rms_prop(const Options& o, const UpdateStep& step, Tensor g, TensorUpdate& of) {
  g = penalised(o, g, of.weights);
  of.slots[0].mul_(o.alpha).addcmul_(g, g, 1 - o.alpha);
  Tensor direction = g.div(of.slots[0].sqrt().add_(o.epsilon));
  if (o.momentum != 0) direction = of.slots[1].mul_(o.momentum).add_(direction);
  of.weights.add_(direction, -step.lr);
}

/// U V' of a matrix U S V', but for singular values of the result between about 0.7 and 1.2. Five
/// steps of Newton and Schulz, by a polynomial of the fifth degree that lifts small singular values
/// fast, on the side with fewer rows. torch.optim.Muon rounds to bfloat16 here.
Tensor orthogonalised(const Tensor& matrix) {
  constexpr int kSteps = 5;
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;
  const bool turned = matrix.size(0) > matrix.size(1);
  Tensor x = (turned ? matrix.t() : matrix).div(matrix.norm().clamp_min(kEpsilon));
  for (int i = 0; i < kSteps; ++i) {
    const Tensor gram = x.mm(x.t());
    x = x.addmm(gram.addmm(gram, gram, kB, kC), x, kA, 1);
  }
  return turned ? x.t() : x;
}

double adjusted_lr(const Options& o, double lr, const Tensor& matrix) {
  const auto m = static_cast<double>(matrix.size(0)), n = static_cast<double>(matrix.size(1));
  const bool original = o.adjust_lr == Options::AdjustLr::kOriginal;
  return lr * (original ? std::sqrt(std::max(1.0, m / n)) : 0.2 * std::sqrt(std::max(m, n)));
}

void muon(const Options& o, const UpdateStep& step, const Tensor& g, TensorUpdate& of) {
  of.slots[0].lerp_(g, 1 - o.momentum);
  const Tensor direction = o.nesterov ? g.lerp(of.slots[0], o.momentum) : of.slots[0];
  of.weights.mul_(1 - step.lr * o.weight_decay)
      .sub_(orthogonalised(direction), adjusted_lr(o, step.lr, of.weights));
}

}  // namespace

void update(const Options& o, const UpdateStep& step, TensorUpdate& of) {
  if (o.kind == Options::Kind::kLamb) {  // prepare() has used the gradient
    of.weights.add_(lamb_direction(o, step, of), -step.lr * step.trust_ratio);
    return;
  }
  const Tensor g = scaled(of.gradient, step);
  switch (o.kind) {
    case Options::Kind::kSgd: return sgd(o, step, g, of);
    case Options::Kind::kAdamW:
    case Options::Kind::kAdam: return adam(o, step, g, of);
    case Options::Kind::kAdagrad: {
      const Tensor direction = penalised(o, g, of.weights);
      of.slots[0].addcmul_(direction, direction);
      of.weights.addcdiv_(direction, of.slots[0].sqrt().add_(o.epsilon), -step.lr);
      return;
    }
    case Options::Kind::kRmsProp: return rms_prop(o, step, g, of);
    case Options::Kind::kLion: {
      const Tensor sign = of.slots[0].lerp(g, 1 - o.beta1).sign_();
      of.slots[0].lerp_(g, 1 - o.beta2);
      of.weights.mul_(1 - step.lr * o.weight_decay).add_(sign, -step.lr);
      return;
    }
    case Options::Kind::kLars: {
      const Tensor direction = penalised(o, g, of.weights);
      of.slots[0].mul_(o.momentum).add_(direction, step.lr * step.trust_ratio);
      of.weights.sub_(of.slots[0]);
      return;
    }
    case Options::Kind::kMuon: return muon(o, step, g, of);
    case Options::Kind::kLamb:   // above
    case Options::Kind::kLbfgs:  // refused
      return;
  }
}

Tensor prepare(const Options& o, const UpdateStep& step, TensorUpdate& of) {
  Tensor direction = scaled(of.gradient, step);
  if (o.kind == Options::Kind::kLamb) {
    advance_moments(o, direction, of);
    direction = lamb_direction(o, step, of);
  }
  return at::stack({squares(of.weights), squares(direction)});
}

Tensor squares(const Tensor& of) {
  return at::linalg_vector_norm(of, 2, {}, /*keepdim=*/false, torch::kFloat64).square();
}

double sum_of(const std::vector<Tensor>& numbers) {
  if (numbers.empty()) return 0;
  const Tensor read = at::stack(numbers).cpu();
  const double* const first = read.const_data_ptr<double>();
  return std::accumulate(first, first + numbers.size(), 0.0);
}

}  // namespace stormo::train
