#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// While it lives, this thread computes in 16 bits what loses little by it: torch.autocast for C++.
/// Parameters, and so gradients and the optimizer's state, stay float32.
///
///   const torch::Tensor output = [&] {
///     const stormo::Autocast autocast(at::kCPU, torch::kBFloat16);
///     return model->forward(x);
///   }();
///   loss_of(output.to(torch::kFloat32)).backward();  // backward runs outside
///
/// In 16 bits run matrix products (linear, matmul, mm, bmm, addmm, baddbmm), convolutions,
/// scaled_dot_product_attention and recurrent cells; in float32 run the losses, prod, trace, cdist,
/// fft and linear algebra; cat and stack take the widest of their inputs; all others, among them
/// softmax and the norms, compute in the type of their input. The list is libtorch's.
///
/// A parameter is rounded once in the life of the outermost Autocast of the thread: end it before
/// the optimizer's step. Cost: one rounded copy of each parameter that such operations use.
class [[nodiscard]] Autocast {
 public:
  /// Throws Error unless `type` is kBFloat16 or kHalf.
  Autocast(torch::DeviceType device, torch::ScalarType type);
  /// Restores what was.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_;
  torch::ScalarType type_before_;
};

/// Dynamic loss scaling for float16 (P. Micikevicius et al., Mixed Precision Training, 2018): the
/// loss is multiplied by a scale, so that small gradients do not vanish. A step whose gradients
/// overflow is skipped on all ranks, and the scale falls; it rises after many good steps. bfloat16
/// has float32's range and needs none of this.
///
///   scaler.scale(loss).backward();
///   if (*scaler.check(optimizer.parameters())) {
///     optimizer.step({.lr = lr, .gradient_scale = scaler.gradient_scale()}, 0, n);
///   }
///   scaler.update();
///
/// Gradients are never rewritten: the optimizer divides by the scale while it updates. A norm for
/// clipping is to be multiplied by gradient_scale() too. Equal on all ranks of `world`. Not
/// thread-safe.
class GradScaler {
 public:
  /// `world` must outlive this: all ranks that skip together. Throws Error for options that cannot
  /// be.
  explicit GradScaler(comm::Communicator& world, const GradScalerOptions& options = {});

  /// The loss to call backward() on; float32 at least, since the scale is beyond float16.
  torch::Tensor scale(const torch::Tensor& loss) const;
  double scale() const { return scale_; }
  /// 1 / scale(), for StepRate.
  double gradient_scale() const { return 1 / scale_; }

  /// Whether all gradients on all ranks are finite, and the step is to be made. Blocks; collective,
  /// once for each step, after the last backward(). Undefined tensors count as finite. Cost: one
  /// reading pass over the gradients, and an all_reduce of 8 bytes.
  Result<bool> check(std::span<const torch::Tensor> gradients);
  /// Of the parameters' gradients: Optimizer::parameters(), or a sharded model's shards().
  Result<bool> check(std::span<const NamedParameter> parameters);
  /// Of gradients that were looked at elsewhere, e.g. by their norm.
  Result<bool> check(bool finite);

  /// Moves the scale by the outcome of check(), after the step. Throws Error when there was no
  /// check(), and when steps keep overflowing at a scale so small that it cannot be the reason.
  void update();

  /// For checkpoints; equal on all ranks.
  std::map<std::string, torch::Tensor> state() const;
  /// kInvalidArgument when it is no state(); nothing is changed then.
  Status load_state(const std::map<std::string, torch::Tensor>& state);

 private:
  enum class Step : std::uint8_t { kUnchecked, kGood, kOverflowed };

  comm::Communicator& world_;
  GradScalerOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;  // since the scale last changed
  Step step_ = Step::kUnchecked;
};

}  // namespace stormo::train

namespace stormo {
using train::Autocast;
using train::GradScaler;
}  // namespace stormo
