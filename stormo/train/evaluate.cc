#include <stormo/train/evaluate.h>

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

}  // namespace

Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split) {
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*task.module);
  const std::int64_t samples = split.dataset->size();
  double loss = 0, correct = 0, seen = 0;
  for (std::int64_t first = world.rank() * split.batch; first < samples;
       first += world.size() * split.batch) {
    std::vector<std::int64_t> indices(
        static_cast<std::size_t>(std::min(split.batch, samples - first)));
    std::iota(indices.begin(), indices.end(), first);
    const data::Batch batch = split.dataset->get(indices, 0);
    const torch::Tensor output = task.forward(batch.input);
    const auto size = static_cast<double>(batch.size());
    loss += task.loss(output, batch.target).item<double>() * size;
    if (task.correct) correct += static_cast<double>(task.correct(output, batch.target));
    seen += size;
  }
  std::array sums{loss, correct, seen};
  STORMO_RETURN_IF_ERROR(
      world.all_reduce(comm::buffer_of(std::span<double>(sums)), comm::ReduceOp::kSum));
  Evaluation result{
      .loss = sums[0] / sums[2], .accuracy = {}, .samples = static_cast<std::int64_t>(sums[2])};
  if (task.correct) result.accuracy = sums[1] / sums[2];
  return result;
}

}  // namespace stormo::train
