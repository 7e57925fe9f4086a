#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/server/shard/host_shard.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/worker/task_loader.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::train {

/// All workers of a run with parameter servers, parameter averaging or elastic averaging, in one
/// process and one thread. One module computes the gradients of all, one worker after the other.
/// Shards are those of a real run, in private memory; parts of the real stores do what workers do
/// by themselves. Who does what in which order is the caller's: virtual time, or a record.
///
/// Averages have no servers. For virtual time an average is an update under policy sync, to which
/// each worker gives its values with a push, and which it takes with its next read.
class SimulatedWorkers {
 public:
  /// Arguments are borrowed. The module's values are the first ones. Steps are those of
  /// options.global_batch, which the workers share; `steps`: of the whole run, for the learning
  /// rate. kInvalidArgument for what is not simulated, and for what servers cannot do.
  static Result<std::unique_ptr<SimulatedWorkers>> create(const Task& task,
                                                          const data::Dataset& data,
                                                          const TrainerOptions& options,
                                                          int workers, std::int64_t steps);
  ~SimulatedWorkers();

  const protocol::Policy& policy() const { return served_ ? served_->policy() : *sync_; }
  /// Sets how many servers there are, and when workers exchange with them. Returns what they do
  /// then: all but `computed` and `ends`.
  protocol::VirtualEvents take_part(protocol::VirtualCluster& cluster);
  /// Computes the worker's gradient from what it has: of the part `part` of step `step` (from 0),
  /// as the worker with this number would in a real run.
  Result<StepOutcome> compute(int worker, int part, std::int64_t step);
  /// Whether all losses were finite. If not, compute() fails.
  bool finite() const { return finite_; }
  /// The module gets the values of the end, and the buffers of worker 0.
  void finish();

  int shards() const { return static_cast<int>(memory_.size()); }
  server::HostShard& shard(int worker, int number);
  /// The worker reads a shard. Returns the number of the shard's last change.
  Result<std::uint64_t> read(int worker, int number);
  /// Gives a shard the worker's last gradient, or the sum of those since its last push; or
  /// exchanges with the centre. `again`: the shard has this already, and the worker may have more.
  Result<server::Shard::Pushed> push(int worker, int number, std::uint64_t sequence,
                                     bool again = false);
  /// See server::Shard::leave(), at the learning rate of the worker's last step.
  Result<std::uint64_t> leave(int worker, int number);

 private:
  class Store;
  struct Worker;

  SimulatedWorkers(const Task& task, const data::Dataset& data, const TrainerOptions& options,
                   int workers, std::int64_t steps);
  Worker& of(int w);
  bool averages() const { return options_.strategy.kind == Strategy::Kind::kParameterAveraging; }
  bool exchanges() const { return options_.strategy.kind == Strategy::Kind::kElasticAveraging; }
  bool updates() const { return averages() || exchanges(); }  // parameters of its own
  bool has_own() const { return updates() || served_->has_copies(); }
  Status make_shards();
  Status start();
  void show(Worker& worker);
  /// Nobody else is there to change a shard: what waits would wait for ever.
  static Deadline at_once() { return Deadline::after(Duration(0)); }
  Status pushed(int number, const protocol::Push& push, const protocol::PushDecision& expected);
  void average();

  Task task_;
  const TrainerOptions& options_;
  std::int64_t steps_;
  std::shared_ptr<const protocol::Policy> sync_;  // of averages
  std::optional<ServedParameters> served_;        // else
  double moving_rate_ = 0;
  std::vector<transport::MemoryFile> memory_;  // by shard
  std::vector<torch::Tensor> state_;           // of the module: parameters, then buffers
  std::vector<Worker> workers_;
  std::set<int> arrived_;  // workers that wait for the next average, in the order of additions
  int last_ = 0;           // a worker that has the last one
  TaskLoader loader_;
  server::StepTask computed_;  // at the moment
  LaneTimer lanes_{0};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Runner> runner_;
  bool finite_ = true;
};

}  // namespace stormo::train
