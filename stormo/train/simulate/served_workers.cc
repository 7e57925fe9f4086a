#include <stormo/train/simulate/served_workers.h>

#include <cmath>
#include <utility>

#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {

using server::HostShard;

namespace {

/// Nobody else is there to change a shard: what waits would wait for ever.
Deadline at_once() { return Deadline::after(Duration(0)); }

}  // namespace

/// Keeps the gradients of a step instead of updating with them.
class ServedWorkers::GradientStore final : public ParameterStore {
 public:
  GradientStore(const ServedParameters& served, const OptimizerOptions& options)
      : served_(served), optimizer_(options, served.parameters()) {}

  Status check(const plan::StepPlan& /*plan*/) const override { return {}; }
  Status perform(const plan::Action& action, double /*weight*/) override {
    return Status(Code::kBadPlan, "a worker has no " + std::string(to_string(action.kind)));
  }
  Result<double> gradient_norm() override { return optimizer_.gradient_norm(); }
  Status update(const ParameterRange& /*range*/, const StepRate& rate) override {
    gradients = served_.gradients();
    gradient_scale = rate.gradient_scale;
    return {};
  }
  Optimizer& optimizer() override { return optimizer_; }

  std::vector<torch::Tensor> gradients;
  double gradient_scale = 1;

 private:
  const ServedParameters& served_;
  FusedOptimizer optimizer_;  // of norms; it has no state
};

Result<std::unique_ptr<ServedWorkers>> ServedWorkers::create(const Task& task,
                                                             const data::Dataset& data,
                                                             const TrainerOptions& options,
                                                             int workers, std::int64_t steps) {
  if (!options.strategy.exchange.every_step()) {
    return invalid_argument(
        "workers with copies of their own (fetch_every, push_every) are not simulated; use 1");
  }
  if (options.servers.updates == server::ShardUpdates::kInPlace) {
    return invalid_argument(
        "updates in place have no order and no version, so they are neither simulated nor "
        "replayed; use strategy.updates=versions");
  }
  if (protocol::has_coordinator(options.servers.policy.kind)) {
    return invalid_argument(
        "policy portions has a coordinator, which is neither simulated nor replayed; use another "
        "policy");
  }
  STORMO_RETURN_IF_ERROR(check_sharding(data, options, workers));
  STORMO_ASSIGN_OR_RETURN(
      ServedParameters served,
      ServedParameters::create(trainable_parameters(*task.module), options, workers));
  std::unique_ptr<ServedWorkers> out(
      new ServedWorkers(task, data, options, std::move(served), steps));
  STORMO_RETURN_IF_ERROR(out->start(workers));
  return out;
}

ServedWorkers::ServedWorkers(const Task& task, const data::Dataset& data,
                             const TrainerOptions& options, ServedParameters served,
                             std::int64_t steps)
    : task_(task),
      data_(data),
      options_(options),
      served_(std::move(served)),
      steps_(steps),
      store_(std::make_unique<GradientStore>(served_, options.optimizer)) {}

ServedWorkers::~ServedWorkers() = default;

Status ServedWorkers::start(int workers) {
  workers_.resize(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    of(w).sampler = std::make_unique<data::Sampler>(make_sampler(data_, options_, w, workers));
    exchange_buffers(of(w), /*to_module=*/false);
  }
  STORMO_RETURN_IF_ERROR(create_shards());
  task_.module->train();
  task_.loss = [this, loss = task_.loss](const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor value = loss(output, target);
    finite_ = finite_ && std::isfinite(value.item<double>());
    return value;
  };
  // what a worker computes between pull and push; the update keeps the gradients
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

Status ServedWorkers::create_shards() {
  for (int w = 0; w < workers(); ++w) {
    for (std::size_t s = 0; s < served_.shards(); ++s) {
      of(w).shards.push_back(served_.make_shard(s, w, {.policy = {}}));
    }
    of(w).views.resize(served_.shards());
  }
  for (std::size_t s = 0; s < served_.shards(); ++s) {
    HostShard& first = *workers_[0].shards[s];
    STORMO_ASSIGN_OR_RETURN(transport::MemoryFile memory,
                            transport::MemoryFile::anonymous(first.bytes()));
    first.create(memory.data());
    STORMO_RETURN_IF_ERROR(served_.copy_values_to(first, s));
    for (Worker& w : workers_) w.shards[s]->attach(memory.data());
    memory_.push_back(std::move(memory));
  }
  return {};
}

// Every worker has buffers of its own, such as running means.
void ServedWorkers::exchange_buffers(Worker& worker, bool to_module) {
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

Result<std::uint64_t> ServedWorkers::read(int worker, int number) {
  STORMO_ASSIGN_OR_RETURN(server::Shard::View view, shard(worker, number).read(at_once()));
  const std::uint64_t commit = view.commit;
  of(worker).views[static_cast<std::size_t>(number)] = std::move(view);
  return commit;
}

data::Sampler::Slice ServedWorkers::slice_of(int part, std::int64_t step) {
  while (std::ssize(cursors_) <= step) {
    cursors_.push_back(of(0).sampler->slice(cursors_.back()).next);
  }
  return of(part).sampler->slice(cursors_[static_cast<std::size_t>(step)]);
}

Result<StepOutcome> ServedWorkers::compute(int worker, int part, std::int64_t step) {
  Worker& me = of(worker);
  const data::Sampler::Slice slice = slice_of(part, step);
  batch_ = data_.get(slice.indices, slice.epoch);
  served_.show(me.views);
  exchange_buffers(me, /*to_module=*/true);
  seed_step(options_.seed, step, part);
  const double peak =
      scaled_learning_rate(options_.learning_rate, options_.optimizer.lr, options_.global_batch);
  me.rate = learning_rate(options_.learning_rate, peak, step, steps_);
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, runner_->step(me.rate));
  exchange_buffers(me, /*to_module=*/false);
  me.gradients = std::move(store_->gradients);
  me.gradient_scale = store_->gradient_scale;
  me.samples = static_cast<double>(outcome.samples);
  return outcome;
}

Result<server::Shard::Pushed> ServedWorkers::push(int worker, int number, std::uint64_t sequence) {
  Worker& me = of(worker);
  const GradientPieces pieces =
      served_.gradient_pieces(static_cast<std::size_t>(number), me.gradients);
  return shard(worker, number)
      .push({.pieces = pieces.dense,
             .lr = me.rate,
             .gradient_scale = me.gradient_scale,
             .weight = me.samples,
             .sequence = sequence},
            at_once());
}

void ServedWorkers::finish() {
  std::vector<server::Shard::View> last;
  for (int s = 0; s < shards(); ++s) last.push_back(shard(0, s).look().take_or_throw());
  served_.show(last);
  served_.keep_values();
  exchange_buffers(of(0), /*to_module=*/true);
}

}  // namespace stormo::train
