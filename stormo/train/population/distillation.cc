#include <stormo/train/population/distillation.h>

#include <memory>
#include <utility>

#include <ATen/autocast_mode.h>

namespace stormo::train {
namespace {

/// Of the copies, each of which the module shows in turn.
torch::Tensor mean_prediction(const Task& task, PopulationStore& store, const torch::Tensor& input,
                              double temperature) {
  const torch::NoGradGuard no_grad;
  const bool was_training = task.module->is_training();
  task.module->eval();
  torch::Tensor sum;
  for (const PopulationStore::Copy& copy : store.copies()) {
    at::autocast::clear_cache();  // of rounded parameters
    const GatheredParameters shown = store.show(copy);
    torch::Tensor output = task.forward(input);
    if (output.element_size() < 4) output = output.to(torch::kFloat32);
    const torch::Tensor prediction = at::softmax(output / temperature, -1);
    sum = sum.defined() ? sum + prediction : prediction;
  }
  at::autocast::clear_cache();
  task.module->train(was_training);
  return sum / static_cast<double>(store.copies().size());
}

}  // namespace

Task distilled(const Task& task, PopulationStore& store, const DistillationOptions& how) {
  const auto of_others = std::make_shared<torch::Tensor>();  // of the batch that is computed
  Task out = task;
  out.forward = [task, &store, how, of_others](const torch::Tensor& input) {
    const bool learns = how.weight > 0 && store.updates() >= how.burn_in && !store.copies().empty();
    if (learns) *of_others = mean_prediction(task, store, input, how.temperature);
    return task.forward(input);
  };
  out.loss = [task, how, of_others](const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor loss = task.loss(output, target);
    const torch::Tensor wanted = std::exchange(*of_others, {});
    if (!wanted.defined()) return loss;
    const double t = how.temperature;
    const torch::Tensor own = at::log_softmax(output / t, -1);
    return loss - how.weight * t * t * (wanted * own).sum(-1).mean();
  };
  return out;
}

}  // namespace stormo::train
