#include <stormo/train/evaluation/evaluate.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include <stormo/train/parameters/model_parameters.h>

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

/// Squares of targets around their mean that are smaller than this share of the squares themselves
/// are rounding noise.
constexpr double kRounding = 1e-24;

/// What is summed over all samples, in this order of reduction between ranks.
struct Sums {
  double loss = 0, correct = 0, samples = 0;
  double absolute = 0, squared = 0;         // of outputs minus targets
  double targets = 0, squared_targets = 0;  // of the targets
  double around_mean = 0;                   // squares of the targets around the mean of this rank's

  void add_errors(const torch::Tensor& output, const torch::Tensor& target, double unit) {
    const torch::Tensor is = target.to(torch::kFloat64) * unit;
    const torch::Tensor error = output.to(torch::kFloat64).reshape({-1}) * unit - is;
    absolute += error.abs().sum().item<double>();
    squared += error.square().sum().item<double>();
    squared_targets += is.square().sum().item<double>();
    const auto size = static_cast<double>(is.numel());
    const double sum = is.sum().item<double>();
    around_mean += (is - sum / size).square().sum().item<double>();
    // of two sets: the distance of their means (Chan, Golub and LeVeque 1983)
    if (samples > 0) {
      const double apart = targets / samples - sum / size;
      around_mean += apart * apart * samples * size / (samples + size);
    }
    targets += sum;
  }
  /// Squares around the mean of all ranks, of which these are the sums.
  double around(const Sums& all) const {
    const double apart = samples > 0 ? targets / samples - all.targets / all.samples : 0;
    return around_mean + apart * apart * samples;
  }
  double r2() const {
    if (around_mean > kRounding * squared_targets) return 1 - squared / around_mean;
    return squared <= kRounding * squared_targets ? 1 : 0;
  }
};

/// The batch that begins with sample `first`, of samples up to `end`.
data::Batch load(const EvalSplit& split, std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(split.batch, end - first)));
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

/// Of all ranks. A collective; `numbers`: whether targets are numbers.
Status sum_ranks(comm::Communicator& world, const Sums& mine, bool numbers, Sums& all) {
  std::array sums{mine.loss,    mine.correct, mine.samples,        mine.absolute,
                  mine.squared, mine.targets, mine.squared_targets};
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span<double>(sums), comm::ReduceOp::kSum));
  all = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]};
  if (!numbers) return {};
  std::array around{mine.around(all)};
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span<double>(around), comm::ReduceOp::kSum));
  all.around_mean = around[0];
  return {};
}

/// Of the batches of this rank.
Result<Sums> sum_batches(comm::Communicator& world, const Task& task, const EvalSplit& split,
                         const EvaluatedParts& parts) {
  Sums sums;
  const torch::Device device = device_of(*task.module);
  const std::int64_t rank = parts.columns ? 0 : world.rank();
  const std::int64_t ranks = parts.columns ? 1 : world.size();
  const std::int64_t count = (split.dataset->size() + split.batch - 1) / split.batch;
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t at_once =
        parts.segments == nullptr ? 1 : parts.segments->batches_at_once(split.batch);
    const std::int64_t end = std::min(count, first + at_once * ranks);
    std::vector<data::Batch> batches;
    for (std::int64_t i = first + rank; i < end; i += ranks) {
      batches.push_back(load(split, i * split.batch, split.dataset->size()).to(device));
    }
    STORMO_ASSIGN_OR_RETURN(const std::vector<torch::Tensor> outputs,
                            outputs_of(world, task, batches, parts.segments));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      add(task, batches[i], outputs[i], sums);
      if (parts.see) parts.see(outputs[i], batches[i].target);
    }
    first = end;
  }
  return sums;
}

}  // namespace

Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split,
                            const EvaluatedParts& parts) {
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*task.module);
  STORMO_ASSIGN_OR_RETURN(const Sums mine, sum_batches(world, task, split, parts));
  Sums sums;
  STORMO_RETURN_IF_ERROR(sum_ranks(world, mine, task.target_unit.has_value(), sums));
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

OwnEvaluation evaluate_own(const Task& task, const EvalSplit& split, std::int64_t first,
                           std::int64_t last) {
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*task.module);
  const torch::Device device = device_of(*task.module);
  Sums sums;
  std::vector<torch::Tensor> predicted;
  for (std::int64_t i = first; i < last; i += split.batch) {
    const data::Batch batch = load(split, i, last).to(device);
    const torch::Tensor output = task.forward(batch.input);
    add(task, batch, output, sums);
    const bool has_classes = batch.target.scalar_type() == torch::kInt64;
    if (has_classes) predicted.push_back(output.argmax(-1).flatten().cpu());
  }
  return {.loss = sums.loss / sums.samples,
          .predicted = predicted.empty() ? torch::Tensor() : at::cat(predicted)};
}

}  // namespace stormo::train
