#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/train/server_store/local_copy.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/train/simulate/private_shards.h>
#include <stormo/train/simulate/simulated_workers.h>
#include <stormo/train/simulate/worker_gradients.h>

namespace stormo::train {

/// All workers of a run with parameter servers, in one process and one thread. The shards are those
/// of a real run, in private memory. One module computes the gradients of all workers, one after
/// the other. Who does what in which order is the caller's: a simulation in virtual time, or a
/// replay. Where a pull or push is not for every step (Downpour), each worker has a copy of the
/// parameters, as in a real run.
class ServedWorkers final : public SimulatedWorkers {
 public:
  /// Arguments are borrowed. The module's values are the first ones of the servers. Steps are those
  /// of options.global_batch, which the workers share. kInvalidArgument for what servers cannot do.
  static Result<std::unique_ptr<ServedWorkers>> create(const Task& task, const data::Dataset& data,
                                                       const TrainerOptions& options, int workers,
                                                       std::int64_t steps);

  int shards() const { return shards_.shards(); }
  server::HostShard& shard(int worker, int shard) { return shards_.at(worker, shard); }

  /// The worker reads a shard. Returns the number of the shard's last change.
  Result<std::uint64_t> read(int worker, int shard);
  /// From what the worker has read last, or from its copy.
  Result<StepOutcome> compute(int worker, int part, std::int64_t step) override;
  /// Gives the worker's last gradient to a shard, or the sum of those since its last push.
  Result<server::Shard::Pushed> push(int worker, int shard, std::uint64_t sequence);
  /// See server::Shard::leave(), at the learning rate of the worker's last step.
  Result<std::uint64_t> leave(int worker, int number) {
    return shard(worker, number).leave(of(worker).rate);
  }

  const protocol::Policy& policy() const override { return served_.policy(); }
  void describe(protocol::VirtualCluster& cluster) const override;
  protocol::VirtualEvents events() override;
  bool finite() const override { return gradients_->finite(); }
  /// The module gets the last values of the servers, and the buffers of worker 0.
  void finish() override;

 private:
  struct Worker {
    std::vector<server::Shard::View> views;  // by shard, since its last read
    std::vector<torch::Tensor> gradients;    // of its last push, or last step
    double gradient_scale = 1, rate = 0, samples = 0;
    // where it has a copy of its own
    std::vector<torch::Tensor> own = {};
    LocalCopy copy = {};
    bool has_read = false;  // since its last step
  };

  ServedWorkers(const TrainerOptions& options, ServedParameters served, PrivateShards shards)
      : options_(options), served_(std::move(served)), shards_(std::move(shards)) {}
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  Result<server::Shard::Pushed> push_again(const protocol::Push& push, int number);
  void show(Worker& worker);
  void take(const StepRate& rate);

  const TrainerOptions& options_;
  ServedParameters served_;
  PrivateShards shards_;
  std::vector<Worker> workers_;
  std::unique_ptr<WorkerGradients> gradients_;
  Worker* computing_ = nullptr;
};

}  // namespace stormo::train
