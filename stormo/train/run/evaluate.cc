#include <stormo/train/run/evaluate.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

namespace stormo::train {
namespace {

// Puts a module into evaluation mode and back, whatever happens.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), was_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(was_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_;
};

/// What is summed over all samples, in this order of reduction between ranks.
struct Sums {
  double loss = 0, correct = 0, samples = 0;
  double absolute = 0, squared = 0;         // of outputs minus targets
  double targets = 0, squared_targets = 0;  // of the targets

  void add_errors(const torch::Tensor& output, const torch::Tensor& target, double unit) {
    const torch::Tensor is = target.to(torch::kFloat64) * unit;
    const torch::Tensor error = output.to(torch::kFloat64).reshape({-1}) * unit - is;
    absolute += error.abs().sum().item<double>();
    squared += error.square().sum().item<double>();
    targets += is.sum().item<double>();
    squared_targets += is.square().sum().item<double>();
  }
  /// Nothing where all targets are equal.
  std::optional<double> r2() const {
    const double variance = squared_targets - targets * targets / samples;
    return variance > 0 ? std::optional(1 - squared / variance) : std::nullopt;
  }
};

}  // namespace

Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split,
                            bool together) {
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*task.module);
  const std::int64_t samples = split.dataset->size();
  Sums sums;
  const std::int64_t begin = together ? 0 : world.rank(), stride = together ? 1 : world.size();
  for (std::int64_t first = begin * split.batch; first < samples; first += stride * split.batch) {
    std::vector<std::int64_t> indices(
        static_cast<std::size_t>(std::min(split.batch, samples - first)));
    std::iota(indices.begin(), indices.end(), first);
    const data::Batch batch = split.dataset->get(indices, 0);
    const torch::Tensor output = task.forward(batch.input);
    if (!batch.target.defined()) continue;  // the rank that has the labels counts
    const auto size = static_cast<double>(batch.size());
    sums.loss += task.loss(output, batch.target).item<double>() * size;
    if (task.correct) sums.correct += static_cast<double>(task.correct(output, batch.target));
    if (task.target_unit) sums.add_errors(output, batch.target, *task.target_unit);
    sums.samples += size;
  }
  std::array all{sums.loss,    sums.correct, sums.samples,        sums.absolute,
                 sums.squared, sums.targets, sums.squared_targets};
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span<double>(all), comm::ReduceOp::kSum));
  sums = {all[0], all[1], all[2], all[3], all[4], all[5], all[6]};
  Evaluation result;
  result.loss = sums.loss / sums.samples;
  result.samples = static_cast<std::int64_t>(sums.samples);
  if (task.correct) result.accuracy = sums.correct / sums.samples;
  if (task.target_unit) {
    result.mae = sums.absolute / sums.samples;
    result.r2 = sums.r2();
  }
  return result;
}

}  // namespace stormo::train
