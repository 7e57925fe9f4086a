#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/train/simulate/private_shards.h>
#include <stormo/train/simulate/simulated_workers.h>
#include <stormo/train/simulate/worker_gradients.h>

namespace stormo::train {

/// All workers of a run with elastic averaging, as ElasticStore has one of them. At the end the
/// module has the centre.
class ElasticWorkers final : public SimulatedWorkers {
 public:
  /// Arguments are borrowed. kInvalidArgument as moving_rate_of(), and for what servers cannot do.
  static Result<std::unique_ptr<ElasticWorkers>> create(const Task& task, const data::Dataset& data,
                                                        const TrainerOptions& options, int workers,
                                                        std::int64_t steps);

  const protocol::Policy& policy() const override { return served_.policy(); }
  void describe(protocol::VirtualCluster& cluster) const override;
  Result<StepOutcome> compute(int worker, int part, std::int64_t step) override;
  protocol::VirtualEvents events() override;
  bool finite() const override { return gradients_->finite(); }
  void finish() override;

 private:
  struct Worker {
    std::vector<torch::Tensor> own;        // by parameter
    std::vector<torch::Tensor> gradients;  // of its last step
    StepRate rate;
    std::unique_ptr<FusedOptimizer> optimizer;
  };

  ElasticWorkers(int period, double moving_rate, ServedParameters served, PrivateShards shards)
      : period_(period),
        moving_rate_(moving_rate),
        served_(std::move(served)),
        shards_(std::move(shards)) {}
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  Status exchange(int shard, const protocol::Push& push, const protocol::PushDecision& expected);
  Status update(Worker& worker);

  int period_;
  double moving_rate_;
  ServedParameters served_;
  PrivateShards shards_;
  std::vector<Worker> workers_;
  std::unique_ptr<WorkerGradients> gradients_;
  Worker* computing_ = nullptr;
};

}  // namespace stormo::train
