#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/simulate/simulated_workers.h>
#include <stormo/train/simulate/worker_gradients.h>
#include <stormo/train/store/averaged_state.h>

namespace stormo::train {

/// All workers of a run with parameter averaging, as AveragedStore has one of them. There are no
/// servers: for virtual time an average is an update under policy sync, to which each worker gives
/// its values with a push, and which it takes with its next read.
class AveragedWorkers final : public SimulatedWorkers {
 public:
  /// Arguments are borrowed. kInvalidArgument for a period that changes during the run.
  static Result<std::unique_ptr<AveragedWorkers>> create(const Task& task,
                                                         const data::Dataset& data,
                                                         const TrainerOptions& options, int workers,
                                                         std::int64_t steps);

  const protocol::Policy& policy() const override { return *policy_; }
  void describe(protocol::VirtualCluster& cluster) const override;
  Result<StepOutcome> compute(int worker, int part, std::int64_t step) override;
  protocol::VirtualEvents events() override;
  bool finite() const override { return gradients_->finite(); }
  /// The module gets the last average.
  void finish() override;

 private:
  struct Worker {
    std::vector<torch::Tensor> own;  // by parameter
    double samples = 0;              // since its last average
    std::unique_ptr<FusedOptimizer> optimizer;
    std::unique_ptr<AveragedState> state;
  };

  explicit AveragedWorkers(int period) : period_(period) {}
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  void average();

  int period_;
  std::shared_ptr<const protocol::Policy> policy_;
  std::vector<Worker> workers_;
  std::vector<int> arrived_;  // workers that wait for the next average
  int last_ = 0;              // a worker that has the last one
  std::unique_ptr<WorkerGradients> gradients_;
  Status updated_;  // of the worker that computes
  Worker* computing_ = nullptr;
};

}  // namespace stormo::train
