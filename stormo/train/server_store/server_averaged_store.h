#pragma once

#include <memory>
#include <vector>

#include <stormo/train/server_store/served_store.h>

namespace stormo::train {

/// Parameters that servers average (policy average): whole parameters and optimizer state on every
/// worker, which each updates with its own gradients, and on server shards the averages of both.
/// kAverage gives the servers what this worker has, weighted by its samples; kPull waits until all
/// workers have done so, and takes the averages. The numbers of steps that rules count are averaged
/// and rounded. Weights and state w become (sum over workers, ascending, of n_r w_r) / (sum of
/// n_r), with the bits of AveragedStore on one host. Cost of a period: parameters and state once in
/// each direction, and one pass over them at the server for each worker.
///
/// What is read between steps, and saved, are the averages. After that a worker goes on with its
/// own values, until its next pull. A worker of server processes that is lost is not waited for;
/// one that joins begins with the averages.
class ServerAveragedStore final : public ServedStore {
 public:
  /// A collective. `groups` and `module` are borrowed. Throws Error as ServedStore does, but the
  /// optimizer may be any that updates ranges.
  ServerAveragedStore(const AxisGroups& groups, const std::shared_ptr<torch::nn::Module>& module,
                      const TrainerOptions& options, server::Facts facts = {});

  Status perform(const plan::Action& action, double weight) override;
  Status update(const ParameterRange& range, const StepRate& rate) override {
    return optimizer_.step(rate, range.first, range.last);
  }
  GatheredParameters gather() override;
  void keep_values() override;
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override;
  Status join() override;

 private:
  /// What the servers average, of this worker; shares memory.
  std::vector<torch::Tensor> values();
  Status give_values(double weight);
  Status take_averages();
  void take(const Views& averages);
  void show_own();

  std::vector<torch::Tensor> own_;  // by parameter, while the module shows the averages
};

/// Options of the servers that average in such a run.
TrainerOptions averaging_options(TrainerOptions options);

}  // namespace stormo::train
