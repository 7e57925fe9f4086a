#include <stormo/train/simulate/worker_gradients.h>

#include <cmath>
#include <string>
#include <utility>

#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {

/// Gives the gradients of a step away instead of updating with them.
class WorkerGradients::Store final : public ParameterStore {
 public:
  Store(const OptimizerOptions& options, std::vector<NamedParameter> parameters,
        OnGradients on_gradients)
      : optimizer_(options, std::move(parameters)), on_gradients_(std::move(on_gradients)) {}

  Status check(const plan::StepPlan& /*plan*/) const override { return {}; }
  Status perform(const plan::Action& action, double /*weight*/) override {
    return Status(Code::kBadPlan, "a worker has no " + std::string(to_string(action.kind)));
  }
  Result<double> gradient_norm() override { return optimizer_.gradient_norm(); }
  Status update(const ParameterRange& /*range*/, const StepRate& rate) override {
    on_gradients_(rate);
    return {};
  }
  Optimizer& optimizer() override { return optimizer_; }

 private:
  FusedOptimizer optimizer_;  // of norms; it has no state
  OnGradients on_gradients_;
};

Result<std::unique_ptr<WorkerGradients>> WorkerGradients::create(const Task& task,
                                                                 const data::Dataset& data,
                                                                 const TrainerOptions& options,
                                                                 int workers, std::int64_t steps,
                                                                 OnGradients on_gradients) {
  STORMO_RETURN_IF_ERROR(check_sharding(data, options, workers));
  std::unique_ptr<WorkerGradients> out(
      new WorkerGradients(task, data, options, steps, std::move(on_gradients)));
  STORMO_RETURN_IF_ERROR(out->start(workers));
  return out;
}

WorkerGradients::WorkerGradients(const Task& task, const data::Dataset& data,
                                 const TrainerOptions& options, std::int64_t steps,
                                 OnGradients on_gradients)
    : task_(task),
      data_(data),
      options_(options),
      steps_(steps),
      store_(std::make_unique<Store>(options.optimizer, trainable_parameters(*task.module),
                                     std::move(on_gradients))) {}

WorkerGradients::~WorkerGradients() = default;

Status WorkerGradients::start(int workers) {
  workers_.resize(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    of(w).sampler = std::make_unique<data::Sampler>(make_sampler(data_, options_, w, workers));
    exchange_buffers(of(w), /*to_module=*/false);
  }
  task_.module->train();
  task_.loss = [this, loss = task_.loss](const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor value = loss(output, target);
    finite_ = finite_ && std::isfinite(value.item<double>());
    return value;
  };
  // what a worker computes by itself in a step; the update gives the gradients away
  STORMO_ASSIGN_OR_RETURN(const plan::StepPlan plan,
                          parallel::plan_for({.kind = Strategy::Kind::kOneDevice}, shape_of(task_),
                                             {}, step_options_of(options_, false, 1)));
  STORMO_ASSIGN_OR_RETURN(
      runner_, Runner::create(plan, 0,
                              {.load = [this]() -> Result<data::Batch> { return batch_; },
                               .task = task_,
                               .store = *store_,
                               .lanes = lanes_,
                               .clip_norm = options_.clip_norm}));
  return {};
}

// Every worker has buffers of its own, such as running means.
void WorkerGradients::exchange_buffers(Worker& worker, bool to_module) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> buffers = task_.module->buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (to_module) {
      torch::Tensor(buffers[i]).copy_(worker.buffers[i]);
    } else if (i < worker.buffers.size()) {
      worker.buffers[i].copy_(buffers[i]);
    } else {
      worker.buffers.push_back(buffers[i].clone());
    }
  }
}

data::Sampler::Slice WorkerGradients::slice_of(int part, std::int64_t step) {
  while (std::ssize(cursors_) <= step) {
    cursors_.push_back(of(0).sampler->slice(cursors_.back()).next);
  }
  return of(part).sampler->slice(cursors_[static_cast<std::size_t>(step)]);
}

Result<StepOutcome> WorkerGradients::compute(int worker, int part, std::int64_t step) {
  const data::Sampler::Slice slice = slice_of(part, step);
  batch_ = data_.get(slice.indices, slice.epoch);
  exchange_buffers(of(worker), /*to_module=*/true);
  seed_step(options_.seed, step, part);
  const double peak =
      scaled_learning_rate(options_.learning_rate, options_.optimizer.lr, options_.global_batch);
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome,
                          runner_->step(learning_rate(options_.learning_rate, peak, step, steps_)));
  exchange_buffers(of(worker), /*to_module=*/false);
  return outcome;
}

const std::vector<NamedParameter>& WorkerGradients::parameters() const {
  return store_->optimizer().parameters();
}

std::vector<torch::Tensor> WorkerGradients::copy_values() const {
  std::vector<torch::Tensor> out;
  for (const NamedParameter& p : parameters()) out.push_back(p.tensor.detach().clone());
  return out;
}

void WorkerGradients::show(const std::vector<torch::Tensor>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    torch::Tensor parameter = parameters()[i].tensor;
    parameter.set_data(values[i]);
  }
}

void WorkerGradients::finish() { exchange_buffers(of(0), /*to_module=*/true); }

}  // namespace stormo::train
