#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>
#include <stormo/server/host_shard.h>
#include <stormo/train/options.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/store/served_parameters.h>
#include <stormo/train/task.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::train {

/// All workers of a run with parameter servers, in one process and one thread. The shards are those
/// of a real run, in private memory. One module computes the gradients of all workers, one after
/// the other. Who does what in which order is the caller's: a simulation in virtual time, or a
/// replay.
class ServedWorkers {
 public:
  /// Arguments are borrowed. The module's values are the first ones of the servers. Steps are those
  /// of options.global_batch, which the workers share. kInvalidArgument for what servers cannot do.
  static Result<std::unique_ptr<ServedWorkers>> create(const Task& task, const data::Dataset& data,
                                                       const TrainerOptions& options, int workers,
                                                       std::int64_t steps);
  ~ServedWorkers();

  int workers() const { return static_cast<int>(workers_.size()); }
  int shards() const { return static_cast<int>(served_.shards()); }
  server::HostShard& shard(int worker, int shard) {
    return *of(worker).shards[static_cast<std::size_t>(shard)];
  }

  /// The worker reads a shard. Returns the number of the shard's last change.
  Result<std::uint64_t> read(int worker, int shard);
  /// Computes the worker's gradient from what it has read last: of the part `part` of step `step`
  /// (from 0), as the worker with this number would in a real run.
  Result<StepOutcome> compute(int worker, int part, std::int64_t step);
  /// Whether all losses were finite. If not, compute() fails.
  bool finite() const { return finite_; }
  /// Gives the worker's last gradient to a shard.
  Result<server::Shard::Pushed> push(int worker, int shard, std::uint64_t sequence);
  /// See server::Shard::leave(), at the learning rate of the worker's last step.
  Result<std::uint64_t> leave(int worker, int number) {
    return shard(worker, number).leave(of(worker).rate);
  }

  /// The module gets the last values of the servers, and the buffers of worker 0.
  void finish();

 private:
  class GradientStore;
  struct Worker {
    std::vector<std::unique_ptr<server::HostShard>> shards;
    std::vector<server::Shard::View> views;  // by shard, since its last read
    std::vector<torch::Tensor> gradients;    // of its last step
    std::vector<torch::Tensor> buffers;      // of the module
    std::unique_ptr<data::Sampler> sampler;
    double gradient_scale = 1, rate = 0, samples = 0;
  };

  ServedWorkers(const Task& task, const data::Dataset& data, const TrainerOptions& options,
                ServedParameters served, std::int64_t steps);
  Status start(int workers);
  Status create_shards();
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  data::Sampler::Slice slice_of(int part, std::int64_t step);
  void exchange_buffers(Worker& worker, bool to_module);

  Task task_;
  const data::Dataset& data_;
  const TrainerOptions& options_;
  ServedParameters served_;
  std::int64_t steps_;
  std::vector<Worker> workers_;
  std::vector<std::int64_t> cursors_ = {0};    // where steps begin in the data
  std::vector<transport::MemoryFile> memory_;  // by shard
  LaneTimer lanes_{0};
  std::unique_ptr<GradientStore> store_;
  std::unique_ptr<Runner> runner_;
  data::Batch batch_;  // of the step that is computed
  bool finite_ = true;
};

}  // namespace stormo::train
