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

data::Batch load(const EvalSplit& split, std::int64_t number) {
  const std::int64_t first = number * split.batch, left = split.dataset->size() - first;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(split.batch, left)));
  std::iota(indices.begin(), indices.end(), first);
  return split.dataset->get(indices, 0);
}

void add(const Task& task, const data::Batch& batch, const torch::Tensor& output, Sums& sums) {
  if (!batch.target.defined()) return;  // the rank that has the labels counts
  const auto size = static_cast<double>(batch.size());
  sums.loss += task.loss(output, batch.target).item<double>() * size;
  if (task.correct) sums.correct += static_cast<double>(task.correct(output, batch.target));
  if (task.target_unit) sums.add_errors(output, batch.target, *task.target_unit);
  sums.samples += size;
}

/// The outputs of batches, and for the first ones what they keep. A collective with parts.
Result<std::vector<torch::Tensor>> outputs_of(comm::Communicator& world, const Task& task,
                                              const std::vector<data::Batch>& batches,
                                              SegmentParts* parts) {
  std::vector<torch::Tensor> x;
  for (const data::Batch& batch : batches) x.push_back(batch.input);
  if (parts == nullptr) {
    for (torch::Tensor& t : x) t = task.forward(t);
    return x;
  }
  std::size_t bytes = parts->forward(x);
  if (parts->knows_bytes()) return x;
  const std::int64_t samples = batches.empty() ? 0 : batches.front().size();
  if (samples > 0) bytes += batches.front().input.nbytes() + batches.front().target.nbytes();
  STORMO_RETURN_IF_ERROR(parts->agree_on_bytes(world, bytes, samples));
  return x;
}

/// Of the batches of this rank.
Result<Sums> sum_batches(comm::Communicator& world, const Task& task, const EvalSplit& split,
                         const EvaluatedParts& parts) {
  Sums sums;
  const std::int64_t rank = parts.columns ? 0 : world.rank();
  const std::int64_t ranks = parts.columns ? 1 : world.size();
  const std::int64_t count = (split.dataset->size() + split.batch - 1) / split.batch;
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t at_once =
        parts.segments == nullptr ? 1 : parts.segments->batches_at_once(split.batch);
    const std::int64_t end = std::min(count, first + at_once * ranks);
    std::vector<data::Batch> batches;
    for (std::int64_t i = first + rank; i < end; i += ranks) batches.push_back(load(split, i));
    STORMO_ASSIGN_OR_RETURN(const std::vector<torch::Tensor> outputs,
                            outputs_of(world, task, batches, parts.segments));
    for (std::size_t i = 0; i < batches.size(); ++i) add(task, batches[i], outputs[i], sums);
    first = end;
  }
  return sums;
}

}  // namespace

Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split,
                            const EvaluatedParts& parts) {
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*task.module);
  STORMO_ASSIGN_OR_RETURN(Sums sums, sum_batches(world, task, split, parts));
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
