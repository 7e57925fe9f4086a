#include <stormo/train/simulate/averaged_workers.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <stormo/train/simulate/simulated_training.h>

namespace stormo::train {

Status check_simulated_averaging(const TrainerOptions& options) {
  if (options.averaging.warmup_steps == 0 && options.averaging.max_distance == 0) return {};
  return invalid_argument(
      "parameter_averaging is simulated with a fixed period; leave out strategy.warmup_steps and "
      "strategy.max_distance, or choose other policies");
}

Result<std::unique_ptr<AveragedWorkers>> AveragedWorkers::create(const Task& task,
                                                                 const data::Dataset& data,
                                                                 const TrainerOptions& options,
                                                                 int workers, std::int64_t steps) {
  STORMO_RETURN_IF_ERROR(check_simulated_averaging(options));
  std::unique_ptr<AveragedWorkers> out(new AveragedWorkers(options.strategy.period));
  STORMO_ASSIGN_OR_RETURN(
      out->policy_, protocol::make_policy({.kind = protocol::PolicyOptions::Kind::kSync}, workers));
  STORMO_ASSIGN_OR_RETURN(
      out->gradients_,
      WorkerGradients::create(
          task, data, options, workers, steps, [self = out.get()](const StepRate& rate) {
            FusedOptimizer& optimizer = *self->computing_->optimizer;
            self->updated_ = optimizer.step(rate, 0, optimizer.parameters().size());
          }));
  out->workers_.resize(static_cast<std::size_t>(workers));
  for (Worker& w : out->workers_) {
    w.own = out->gradients_->copy_values();
    w.optimizer =
        std::make_unique<FusedOptimizer>(options.optimizer, out->gradients_->parameters());
    w.state = std::make_unique<AveragedState>(*w.optimizer);
  }
  return out;
}

void AveragedWorkers::describe(protocol::VirtualCluster& cluster) const {
  cluster.servers = 1;
  cluster.read_every = cluster.push_every = period_;
  cluster.crash_ends_run = true;
  cluster.server_crashes.clear();  // there are none
  cluster.backups = false;
}

protocol::VirtualEvents AveragedWorkers::events() {
  return {.read = {},
          .computed = {},
          .pushed =
              [this](int /*server*/, const protocol::Push& push,
                     const protocol::PushDecision& decision) {
                if (decision.action == protocol::PushAction::kRepeated) return Status();
                arrived_.push_back(push.worker);
                if (decision.action == protocol::PushAction::kAddAndUpdate) average();
                return Status();
              },
          .left =
              [this](int /*worker*/, int /*server*/, bool updates) {
                if (updates) average();
                return Status();
              }};
}

Result<StepOutcome> AveragedWorkers::compute(int worker, int part, std::int64_t step) {
  computing_ = &of(worker);
  gradients_->show(computing_->own);
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, gradients_->compute(worker, part, step));
  STORMO_RETURN_IF_ERROR(updated_);
  computing_->samples += static_cast<double>(outcome.samples);
  return outcome;
}

// As AveragedStore does, with sums over the workers in place of all-reduces.
void AveragedWorkers::average() {
  const torch::NoGradGuard no_grad;
  std::vector<int> arrived = std::exchange(arrived_, {});
  std::ranges::sort(arrived);  // the order of additions
  std::vector<double> sums;
  std::vector<std::vector<AveragedState::Array>> arrays;  // by worker
  for (const int w : arrived) {
    gradients_->show(of(w).own);
    const std::vector<double> of_worker = of(w).state->weighted_steps(of(w).samples);
    sums.resize(of_worker.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_worker[i];
    arrays.push_back(of(w).state->arrays());
  }
  if (sums[0] == 0) return;  // nobody had samples, so nobody has moved
  for (std::size_t a = 0; a < arrays.front().size(); ++a) {
    torch::Tensor mean;
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      const torch::Tensor term = arrays[i][a].flat().mul_(of(arrived[i]).samples);
      mean = mean.defined() ? mean.add_(term) : term;
    }
    mean.mul_(1 / sums[0]);
    for (auto& of_worker : arrays) of_worker[a].take(mean);
  }
  for (const int w : arrived) {
    gradients_->show(of(w).own);
    of(w).state->end_average(sums);
    of(w).samples = 0;
  }
  last_ = arrived.front();
}

void AveragedWorkers::finish() {
  gradients_->show(of(last_).own);
  gradients_->finish();
}

}  // namespace stormo::train
