#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>
#include <stormo/train/options.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Computes the gradients of all workers of a run in one process and one thread: one module, one
/// worker after the other. Where the workers' values are, and what becomes of gradients, is the
/// caller's.
class WorkerGradients {
 public:
  /// Called at the end of compute(), while the module has the gradients.
  using OnGradients = std::function<void(const StepRate&)>;

  /// Arguments are borrowed. Steps are those of options.global_batch, which the workers share;
  /// `steps`: of the whole run, for the learning rate. kInvalidArgument for a batch that does not
  /// suit the options.
  static Result<std::unique_ptr<WorkerGradients>> create(const Task& task,
                                                         const data::Dataset& data,
                                                         const TrainerOptions& options, int workers,
                                                         std::int64_t steps,
                                                         OnGradients on_gradients);
  ~WorkerGradients();

  int workers() const { return static_cast<int>(workers_.size()); }
  /// Computes the worker's gradient from the values that the module shows: of the part `part` of
  /// step `step` (from 0), as the worker with this number would in a real run.
  Result<StepOutcome> compute(int worker, int part, std::int64_t step);
  /// Whether all losses were finite. If not, compute() fails.
  bool finite() const { return finite_; }

  const std::vector<NamedParameter>& parameters() const;
  /// Copies of the values that the module shows, by parameter.
  std::vector<torch::Tensor> copy_values() const;
  /// The module uses the memory of `values`, by parameter.
  void show(const std::vector<torch::Tensor>& values);
  /// The module gets the buffers of worker 0.
  void finish();

 private:
  class Store;
  struct Worker {
    std::vector<torch::Tensor> buffers;  // of the module, such as running means
    std::unique_ptr<data::Sampler> sampler;
  };

  WorkerGradients(const Task& task, const data::Dataset& data, const TrainerOptions& options,
                  std::int64_t steps, OnGradients on_gradients);
  Status start(int workers);
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  data::Sampler::Slice slice_of(int part, std::int64_t step);
  void exchange_buffers(Worker& worker, bool to_module);

  Task task_;
  const data::Dataset& data_;
  const TrainerOptions& options_;
  std::int64_t steps_;
  std::vector<Worker> workers_;
  std::vector<std::int64_t> cursors_ = {0};  // where steps begin in the data
  LaneTimer lanes_{0};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Runner> runner_;
  data::Batch batch_;  // of the step that is computed
  bool finite_ = true;
};

}  // namespace stormo::train
