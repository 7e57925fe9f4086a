#include <cli/bench/async/rank.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <bench/worker_record.h>
#include <cli/bench/step/data.h>
#include <cli/bench/step/task.h>
#include <stormo/launch/environment.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

using Clock = std::chrono::steady_clock;

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Watches a task from inside its forward and loss, which every way to train computes once per
/// step, and makes steps slow.
class WorkerProbe {
 public:
  WorkerProbe(int worker, int workers, SlowWorker slow)
      : worker_(worker), workers_(workers), slow_(slow) {}

  void attach(train::Task& task) {
    task.forward = [this, inner = task.forward](const torch::Tensor& input) {
      begun_ = Clock::now();
      return inner(input);
    };
    task.loss = [this, inner = task.loss](const torch::Tensor& output,
                                          const torch::Tensor& target) {
      torch::Tensor loss = inner(output, target);
      note(loss);
      return loss;
    };
  }

  bench::WorkerRecord record() const {
    const std::span<const double> losses(losses_);
    bench::WorkerRecord out{.worker = worker_,
                            .workers = 1,
                            .times = {},
                            .first_loss = mean(losses.first(kStepBatches)),
                            .last_loss = mean(losses.last(kStepBatches))};
    for (std::size_t i = kStepWarmup; i < times_.size(); ++i)
      out.times.push_back(std::chrono::duration<double>(times_[i].time_since_epoch()).count());
    out.losses.assign(losses_.begin() + kStepWarmup, losses_.end());
    return out;
  }

 private:
  void note(torch::Tensor& loss) {
    losses_.push_back(loss.item<double>());
    times_.push_back(Clock::now());
    const int step = static_cast<int>(times_.size()) - 1 - kStepWarmup;
    const double factor = step < 0 ? 1 : slowness(slow_, worker_, workers_, step);
    if (factor == 1) return;
    loss.register_hook([this, factor](const torch::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this, factor] { std::this_thread::sleep_for((factor - 1) * (Clock::now() - begun_)); });
    });
  }

  int worker_;
  int workers_;
  SlowWorker slow_;
  Clock::time_point begun_;
  std::vector<Clock::time_point> times_;
  std::vector<double> losses_;
};

void print(const bench::WorkerRecord& record) {
  const std::string line = to_json(record) + "\n";
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stdout));
  std::fflush(stdout);
}

Status train_by_trainer(const StepJob& job, const SlowWorker& slow) {
  const World world = stormo::init(/*threads=*/1);
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, world.size()));
  STORMO_ASSIGN_OR_RETURN(train::Task task, train::make_task(recipe, {}));
  WorkerProbe probe(world.rank(), world.size(), slow);
  probe.attach(task);
  train::Trainer trainer(world, std::move(task), std::make_shared<StepData>(job, world.size()), {},
                         recipe.train);
  STORMO_RETURN_IF_ERROR(trainer.run().status());
  print(probe.record());
  return {};
}

/// The workers only begin at the same time.
Status train_alone(const StepJob& job, const SlowWorker& slow) {
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          launch::read_environment(launch::process_environment()));
  STORMO_ASSIGN_OR_RETURN(const auto world, comm::join(place));
  at::set_num_threads(1);
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, 1));
  STORMO_ASSIGN_OR_RETURN(train::Task task, train::make_task(recipe, {}));
  WorkerProbe probe(world->rank(), world->size(), slow);
  probe.attach(task);
  const StepData data(job, 1);
  const auto parameters = train::trainable_parameters(*task.module);
  STORMO_RETURN_IF_ERROR(world->barrier());
  for (int step = 0; step < recipe.train.steps; ++step) {
    const data::Batch batch = data.get({}, step);
    task.loss(task.forward(batch.input), batch.target).backward();
    const torch::NoGradGuard no_grad;
    for (const train::NamedParameter& p : parameters) {
      torch::Tensor values = p.tensor;
      values.add_(values.grad(), -recipe.train.optimizer.lr);
      values.mutable_grad().reset();
    }
  }
  print(probe.record());
  return world->finalize(Deadline::never());
}

}  // namespace

Status run_async_rank(const StepJob& job, const SlowWorker& slow, const std::string& contender) {
  if (contender == "stormo") return train_by_trainer(job, slow);
  if (contender == "plain") return train_alone(job, slow);
  return invalid_argument("--contender: '" + contender + "' is none; stormo or plain");
}

}  // namespace stormo::cli
