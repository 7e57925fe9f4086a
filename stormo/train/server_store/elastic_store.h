#pragma once

#include <memory>
#include <vector>

#include <stormo/train/server_store/served_store.h>

namespace stormo::train {

/// Elastic averaging (Zhang et al., NIPS 2015): whole parameters and optimizer state on every rank,
/// which each rank updates with its own gradients, and on server shards a centre, which has no
/// optimizer. kElasticAverage moves the rank's parameters and the centre towards each other, one
/// shard after the other, each rank from another one on. There are no collectives in a step.
///
/// What is read between steps, and saved, is the centre, with the optimizer state of the first
/// rank. After that each rank goes on with its own parameters. Who loads a state begins with the
/// centre and that optimizer state on all ranks. A worker of server processes begins with the
/// centre whenever it joins.
class ElasticStore final : public ServedStore {
 public:
  /// A collective. `groups` and `module` are borrowed. Throws Error as ServedStore does, but the
  /// optimizer may be any.
  ElasticStore(const AxisGroups& groups, const std::shared_ptr<torch::nn::Module>& module,
               const TrainerOptions& options, server::Facts facts = {});

  Status perform(const plan::Action& action, double weight) override;
  Status update(const ParameterRange& range, const StepRate& rate) override {
    return optimizer_.step(rate, range.first, range.last);
  }
  GatheredParameters gather() override;
  void keep_values() override;
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_.load_state(read); }
  Status join() override;

 private:
  void show_own();
  void take_centre();

  double moving_rate_;
  std::vector<torch::Tensor> own_;  // by parameter, while the module shows the centre
};

/// Options of the servers that hold the centre of such a run.
TrainerOptions centre_options(TrainerOptions options);

/// Alpha of an exchange. kInvalidArgument if it is out of range, or more than 1 for all workers
/// together: the paper's beta is at most 1.
Result<double> moving_rate_of(const ElasticOptions& options, int workers);

}  // namespace stormo::train
