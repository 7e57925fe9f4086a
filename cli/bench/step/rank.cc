#include <cli/bench/step/rank.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/utils.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <bench/statistics.h>
#include <bench/step_record.h>
#include <bench/worker_record.h>
#include <cli/bench/step/task.h>
#include <stormo/launch/environment.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

/// The value of "Pss:   123 kB" in a file of /proc, in bytes.
std::uint64_t kilobytes_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t value = 0;
    if (word == key && file >> value) return value << 10;
  }
  return 0;
}

double seconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Watches a task from inside its loss, which every way to train computes once per step: when, and
/// what it is.
class LossProbe {
 public:
  virtual ~LossProbe() = default;
  LossProbe(const LossProbe&) = delete;

  virtual void attach(train::Task& task) {
    task.loss = [this, inner = task.loss](const torch::Tensor& output,
                                          const torch::Tensor& target) {
      torch::Tensor loss = inner(output, target);
      losses_.push_back(loss.item<double>());
      times_.push_back(std::chrono::steady_clock::now());
      after(loss);
      return loss;
    };
  }

 protected:
  LossProbe() = default;
  virtual void after(torch::Tensor& loss) = 0;
  /// Calls `then` when the backward of this loss has ended.
  static void at_end_of_backward(torch::Tensor& loss, const std::function<void()>& then) {
    loss.register_hook([then](const torch::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback(then);
    });
  }

  std::vector<std::chrono::steady_clock::time_point> times_;
  std::vector<double> losses_;
};

/// Looks at the memory, too, when the backward of the last step has ended, with all gradients
/// there.
class StepProbe final : public LossProbe {
 public:
  /// `before_sample` runs before the memory is looked at.
  StepProbe(const StepJob& job, std::function<void()> before_sample)
      : calls_(static_cast<std::size_t>(kStepWarmup + job.steps + 1)),
        before_sample_(std::move(before_sample)) {}

  /// As attach(), where ranks have parts of the model: some of them compute losses, one for each
  /// micro-batch. A step begins when its batch is loaded.
  void attach_to_part(train::Task& task, int micro_batches) {
    const auto noted = [this, micro_batches](const auto& inner) {
      return [this, micro_batches, inner](const auto&... arguments) {
        torch::Tensor loss = inner(arguments...);
        sum_ += loss.template item<double>() / micro_batches;
        has_loss_ = true;
        return loss;
      };
    };
    task.loss = noted(task.loss);
    task.split_loss = noted(task.split_loss);
  }
  void watch(train::Trainer& trainer) {
    trainer.on_action([this](const plan::Action& a) {
      const plan::Values& makes = row_of(a.kind).makes;
      if (makes.has(plan::Value::kUpdated) && times_.size() == calls_) sample_memory();
      if (!makes.has(plan::Value::kBatch)) return;
      if (!times_.empty()) losses_.push_back(std::exchange(sum_, 0));
      times_.push_back(std::chrono::steady_clock::now());
    });
  }
  /// To all ranks the mean of those that have losses.
  Status share_losses(comm::Communicator& world) {
    losses_.push_back(std::exchange(sum_, 0));
    losses_.push_back(has_loss_ ? 1 : 0);
    STORMO_RETURN_IF_ERROR(world.all_reduce(std::span<double>(losses_), comm::ReduceOp::kSum));
    const double having = losses_.back();
    losses_.pop_back();
    for (double& loss : losses_) loss /= having;
    return {};
  }

  bench::StepRecord record(const comm::Communicator& world) const {
    std::vector<double> seconds;
    for (std::size_t i = kStepWarmup; i + 1 < times_.size(); ++i)
      seconds.push_back(seconds_of(times_[i + 1] - times_[i]));
    return {.rank = world.rank(),
            .host = world.cross_rank(),
            .p50_s = bench::median(seconds),
            .p90_s = bench::percentile(seconds, 0.9),
            .steps = static_cast<int>(seconds.size()),
            .pss = pss_,
            .peak_rss = peak_rss_,
            .first_loss = losses_.front(),
            .compared_loss = losses_[bench::kComparedUpdates],
            .last_loss = losses_.back()};
  }

 private:
  void after(torch::Tensor& loss) override {
    if (times_.size() == calls_) at_end_of_backward(loss, [this] { sample_memory(); });
  }
  void sample_memory() {
    before_sample_();
    pss_ = kilobytes_of("/proc/self/smaps_rollup", "Pss:");
    peak_rss_ = kilobytes_of("/proc/self/status", "VmHWM:");
  }

  std::size_t calls_;
  std::function<void()> before_sample_;
  bool has_loss_ = false;
  double sum_ = 0;  // of the step, so far
  std::uint64_t pss_ = 0;
  std::uint64_t peak_rss_ = 0;
};

/// Makes steps slow, too.
class WorkerProbe final : public LossProbe {
 public:
  WorkerProbe(const comm::Communicator& world, SlowWorker slow)
      : worker_(world.rank()), workers_(world.size()), slow_(slow) {}

  void attach(train::Task& task) override {
    LossProbe::attach(task);
    task.forward = [this, inner = task.forward](const torch::Tensor& input) {
      begun_ = std::chrono::steady_clock::now();
      return inner(input);
    };
  }

  bench::WorkerRecord record() const {
    const std::span<const double> losses(losses_);
    bench::WorkerRecord out{.worker = worker_,
                            .workers = 1,
                            .times = {},
                            .first_loss = bench::mean(losses.first(kStepBatches)),
                            .last_loss = bench::mean(losses.last(kStepBatches))};
    for (std::size_t i = kStepWarmup; i < times_.size(); ++i)
      out.times.push_back(seconds_of(times_[i].time_since_epoch()));
    out.losses.assign(losses_.begin() + kStepWarmup, losses_.end());
    return out;
  }

 private:
  void after(torch::Tensor& loss) override {
    const int step = static_cast<int>(times_.size()) - 1 - kStepWarmup;
    const double factor = step < 0 ? 1 : slowness(slow_, worker_, workers_, step);
    if (factor == 1) return;
    at_end_of_backward(loss, [this, factor] {
      std::this_thread::sleep_for((factor - 1) * (std::chrono::steady_clock::now() - begun_));
    });
  }

  int worker_;
  int workers_;
  SlowWorker slow_;
  std::chrono::steady_clock::time_point begun_;
};

/// The shortest loop over libtorch that does the same work as a recipe's, with AdamW or plain SGD.
class PlainLoop {
 public:
  PlainLoop(train::Task task, const train::OptimizerOptions& options)
      : task_(std::move(task)), options_(options) {
    for (const train::NamedParameter& p : train::trainable_parameters(*task_.module)) {
      parameters_.push_back(p.tensor);
      if (options_.kind == train::OptimizerOptions::Kind::kSgd) continue;
      averages_.push_back(torch::zeros_like(p.tensor));
      squares_.push_back(torch::zeros_like(p.tensor));
      counts_.push_back(torch::zeros({}, torch::kFloat32));
    }
  }

  void step(const data::Batch& batch) {
    task_.loss(task_.forward(batch.input), batch.target).backward();
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (torch::Tensor& p : parameters_) gradients.push_back(p.grad());
    if (options_.kind == train::OptimizerOptions::Kind::kSgd) {
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        parameters_[i].add_(gradients[i], -options_.lr);
    } else {
      for (torch::Tensor& count : counts_) *count.data_ptr<float>() += 1;
      at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, counts_, options_.lr,
                        options_.beta1, options_.beta2, options_.weight_decay, options_.epsilon,
                        /*amsgrad=*/false, /*maximize=*/false);
    }
    for (torch::Tensor& p : parameters_) p.mutable_grad().reset();
  }

 private:
  train::Task task_;
  train::OptimizerOptions options_;
  std::vector<torch::Tensor> parameters_, averages_, squares_, counts_;
};

/// A record, in one call.
void print_record(const std::string& record) {
  const std::string line = record + "\n";
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stdout));
  std::fflush(stdout);
}

Result<std::unique_ptr<comm::Communicator>> join_world() {
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          launch::read_environment(launch::process_environment()));
  return comm::join(place);
}

/// The steps of a job by the Trainer, as `stormo train` runs it. `attach` puts a probe into the
/// task, and `watch` into the Trainer.
Status run_trainer(const StepJob& job, const World& world,
                   const std::function<void(train::Task&)>& attach,
                   const std::function<void(train::Trainer&)>& watch = {}) {
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, world.size()));
  STORMO_ASSIGN_OR_RETURN(train::Task task, train::make_task(recipe, {}));
  attach(task);
  train::Trainer trainer(world, std::move(task), std::make_shared<StepData>(job, world.size()), {},
                         recipe.train);
  if (watch) watch(trainer);
  return trainer.run().status();
}

/// The same in the shortest loop, by this process alone; the ranks begin at the same time.
Status run_alone(const StepJob& job, comm::Communicator& world, LossProbe& probe) {
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, 1));
  STORMO_ASSIGN_OR_RETURN(train::Task task, train::make_task(recipe, {}));
  probe.attach(task);
  const StepData data(job, 1);
  PlainLoop loop(std::move(task), recipe.train.optimizer);
  STORMO_RETURN_IF_ERROR(world.barrier());
  for (int step = 0; step < recipe.train.steps; ++step) loop.step(data.get({}, step));
  return {};
}

Status train_by_trainer(const StepJob& job) {
  const World world = stormo::init(/*threads=*/1);
  StepProbe probe(job, [] {});
  const bool cut = !job.strategy->cut.empty() && world.size() > 1;
  const auto attach = [&](train::Task& task) {
    cut ? probe.attach_to_part(task, job.micro_batches) : probe.attach(task);
  };
  STORMO_RETURN_IF_ERROR(run_trainer(job, world, attach, [&](train::Trainer& trainer) {
    if (cut) probe.watch(trainer);
  }));
  if (cut) STORMO_RETURN_IF_ERROR(probe.share_losses(world));
  print_record(to_json(probe.record(world)));
  return {};
}

/// The ranks look at their memory at the same time.
Status train_alone(const StepJob& job, bool in_arena) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world());
  if (in_arena) tensor::install_arena_allocator(world->arena());
  at::set_num_threads(1);
  StepProbe probe(job, [&world] { throw_if_error(world->barrier()); });
  STORMO_RETURN_IF_ERROR(run_alone(job, *world, probe));
  print_record(to_json(probe.record(*world)));
  return world->finalize(Deadline::never());
}

/// A rank is bound to its share of the cores.
void use_all_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
  static_cast<void>(::sched_setaffinity(0, sizeof all, &all));
}

/// Rank 0 alone computes the batch, with as many threads as there are ranks, which sleep meanwhile
/// and print what it has measured.
Status train_in_one_process(const StepJob& job) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world());
  use_all_cores();
  at::set_num_threads(world->size());
  bench::StepRecord record;
  if (world->rank() == 0) {
    StepProbe probe(job, [] {});
    STORMO_RETURN_IF_ERROR(run_alone(job, *world, probe));
    record = probe.record(*world);
  } else {
    STORMO_RETURN_IF_ERROR(world->barrier());
  }
  const std::array figures = {&bench::StepRecord::p50_s, &bench::StepRecord::p90_s,
                              &bench::StepRecord::first_loss, &bench::StepRecord::compared_loss,
                              &bench::StepRecord::last_loss};
  for (double bench::StepRecord::*figure : figures)
    STORMO_RETURN_IF_ERROR(world->broadcast(std::span(&(record.*figure), 1), 0));
  record.rank = world->rank();
  record.host = world->cross_rank();
  record.steps = job.steps;
  print_record(to_json(record));
  return world->finalize(Deadline::never());
}

/// The segments are measured on all ranks at the same time: they share caches and memory as the
/// ranks of a training do.
Status predict(const StepJob& job) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world());
  at::set_num_threads(1);
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, world->size()));
  STORMO_ASSIGN_OR_RETURN(const train::Task task, train::make_task(recipe, {}));
  StepJob part = job;  // what is measured is one micro-batch
  part.batch = std::max(1, job.batch / job.micro_batches);
  STORMO_ASSIGN_OR_RETURN(
      comm::StepInput step,
      train::planned_step(recipe.train, task, world->ranks_per_host(), part.batch));
  const StepData data(part, world->size());
  measure_moves(step, task, data);
  STORMO_RETURN_IF_ERROR(world->barrier());
  STORMO_ASSIGN_OR_RETURN(
      train::StepMeasurement measured,
      measure_step(task, data, recipe.train, part.batch,
                   {.in_parts = has_backward_parts(step.plan),
                    .before_step = [&world] { throw_if_error(world->barrier()); }}));
  step.measured = std::move(measured.times);
  comm::StepModel model("bench step", plan::Topology::gigabit(world->ranks_per_host()));
  STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation simulation,
                          train::simulated_as_trained(model, recipe.train, step));
  const bench::StepRecord record{.rank = world->rank(),
                                 .host = world->cross_rank(),
                                 .p50_s = simulation.seconds,
                                 .p90_s = simulation.seconds,
                                 .steps = 1};
  print_record(to_json(record));
  return world->finalize(Deadline::never());
}

Status train_worker_by_trainer(const StepJob& job, const SlowWorker& slow) {
  const World world = stormo::init(/*threads=*/1);
  WorkerProbe probe(world, slow);
  STORMO_RETURN_IF_ERROR(
      run_trainer(job, world, [&probe](train::Task& task) { probe.attach(task); }));
  print_record(to_json(probe.record()));
  return {};
}

Status train_worker_alone(const StepJob& job, const SlowWorker& slow) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world());
  at::set_num_threads(1);
  WorkerProbe probe(*world, slow);
  STORMO_RETURN_IF_ERROR(run_alone(job, *world, probe));
  print_record(to_json(probe.record()));
  return world->finalize(Deadline::never());
}

}  // namespace

Status run_step_rank(const StepJob& job, const std::string& contender) {
  if (contender == "stormo") return train_by_trainer(job);
  if (contender == "plain" || contender == "arena") return train_alone(job, contender == "arena");
  if (contender == "predicted") return predict(job);
  if (contender == "one_process") return train_in_one_process(job);
  return invalid_argument("--contender: '" + contender +
                          "' is none; stormo, plain, arena, one_process or predicted");
}

Status run_async_rank(const StepJob& job, const SlowWorker& slow, const std::string& contender) {
  if (contender == "stormo") return train_worker_by_trainer(job, slow);
  if (contender == "plain") return train_worker_alone(job, slow);
  return invalid_argument("--contender: '" + contender + "' is none; stormo or plain");
}

}  // namespace stormo::cli
