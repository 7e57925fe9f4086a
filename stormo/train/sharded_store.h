#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/plan/step_plan.h>
#include <stormo/train/fully_sharded_data_parallel.h>
#include <stormo/train/options.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// Parameters, gradients or optimizer state in parts; see FullyShardedDataParallel, which gathers
/// and reduces each segment when it is its turn.
class ShardedStore final : public ParameterStore {
 public:
  /// A collective. Throws Error unless `module` is a model::Chain.
  ShardedStore(comm::Communicator& world, const std::shared_ptr<torch::nn::Module>& module,
               const OptimizerOptions& options, const ShardingOptions& sharding);

  void begin_pass(double weight, bool last) override;
  torch::Tensor forward(const Task& task, const torch::Tensor& input) override;
  bool by_segment() const override { return true; }
  void skip_passes() override { fsdp_.join_step(); }
  Result<double> gradient_norm() override { return fsdp_.gradient_norm(); }
  Status update(const ParameterRange& all, const StepRate& rate) override;
  void zero_grad() override { fsdp_.zero_grad(); }
  bool always_readable() const override { return false; }
  std::shared_ptr<void> readable() override;
  void keep_values() override { fsdp_.leave_whole(); }
  Optimizer& optimizer() override { return *optimizer_; }
  bool whole() const override { return false; }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_->load_state(read); }
  std::string describe() const override;

 private:
  bool saves_;  // this rank's parts are not a copy of another's
  FullyShardedDataParallel fsdp_;
  std::unique_ptr<FusedOptimizer> optimizer_;
  std::optional<FullyShardedDataParallel::NoSync> local_;  // while passes accumulate
  std::string description_;
};

}  // namespace stormo::train
