#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/train/backward_reducer.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// Whole parameters and optimizer state on every rank, kept equal by equal averaged gradients.
class ReplicatedStore final : public ParameterStore {
 public:
  /// `ranges`: what the plan reduces, in its order. One alone may overlap with backward; several
  /// are reduced one by one. `world` is borrowed.
  ReplicatedStore(comm::Communicator& world, std::unique_ptr<Optimizer> optimizer,
                  const std::vector<ParameterRange>& ranges, Reduction how);

  void begin_pass(double weight, bool last) override;
  Status all_reduce(const ParameterRange& range, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& range, const StepRate& rate) override;
  Optimizer& optimizer() override { return *optimizer_; }
  std::string describe() const override;

 private:
  struct Part {
    ParameterRange range;
    std::unique_ptr<BackwardReducer> reducer;
  };
  Part* part_of(const ParameterRange& range);

  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Part> parts_;
};

}  // namespace stormo::train
