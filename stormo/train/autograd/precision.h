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

/// torch.autocast for C++: while the object lives, this thread computes suitable operations in 16
/// bits. Parameters, and so gradients and the optimizer's state, stay float32.
///
///   const torch::Tensor output = [&] {
///     const stormo::Autocast autocast(at::kCPU, torch::kBFloat16);
///     return model->forward(x);
///   }();
///   loss_of(output.to(torch::kFloat32)).backward();  // backward runs outside
///
/// These run in 16 bits: matrix products (linear, matmul, mm, bmm, addmm, baddbmm), convolutions,
/// scaled_dot_product_attention and recurrent cells. These run in float32: losses, prod, trace,
/// cdist, fft and linear algebra. cat and stack use the widest type of their inputs. All others,
/// among them softmax and norms, use the type of their input. The list is libtorch's.
///
/// A parameter is rounded only once in the life of the thread's outermost Autocast, so destroy it
/// before the optimizer's step. Cost: one rounded copy of each parameter that such operations use.
class [[nodiscard]] Autocast {
 public:
  /// Throws Error unless `type` is kBFloat16 or kHalf.
  Autocast(torch::DeviceType device, torch::ScalarType type);
  /// Restores the previous setting.
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
/// Gradients are never rewritten: the optimizer divides by the scale in its update. For clipping,
/// multiply the norm by gradient_scale() too. The state is equal on all ranks of `world`. Not
/// thread-safe.
class GradScaler {
 public:
  /// `world`: the ranks that skip a step together; must outlive this. Throws Error for invalid
  /// options.
  explicit GradScaler(comm::Communicator& world, const GradScalerOptions& options = {});

  /// The scaled loss, on which to call backward(); at least float32, since float16 cannot represent
  /// the scale.
  torch::Tensor scale(const torch::Tensor& loss) const;
  double scale() const { return scale_; }
  /// 1 / scale(), for StepRate.
  double gradient_scale() const { return 1 / scale_; }

  /// Whether all gradients on all ranks are finite, so that the step is to be made. A collective;
  /// blocks. Call it once for each step, after the last backward(). Undefined tensors count as
  /// finite. Cost: reads the gradients once, and an all_reduce of 8 bytes.
  Result<bool> check(std::span<const torch::Tensor> gradients);
  /// The same for the gradients of parameters: Optimizer::parameters(), or a sharded model's
  /// shards().
  Result<bool> check(std::span<const NamedParameter> parameters);
  /// The same when this rank has already checked its gradients, e.g. by their norm.
  Result<bool> check(bool finite);

  /// Call after the step: adjusts the scale by the result of check(). Throws Error if check() was
  /// not called, and if steps still overflow at a scale so small that it cannot be the reason.
  void update();

  /// For checkpoints; equal on all ranks.
  std::map<std::string, torch::Tensor> state() const;
  /// kInvalidArgument, without any change, if `state` is not the result of state().
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
