#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <stormo/train/run/common_run.h>
#include <stormo/train/worker/worker_progress.h>

namespace stormo::train {

/// A run whose workers share memory and do not wait for each other. A round is the steps between
/// two points where all workers do: to evaluate, to save, or at the end.
class RoundsRun final : public CommonRun {
 public:
  explicit RoundsRun(RunSetup& setup) : CommonRun(setup) {}

 private:
  Status prepare() override;
  Status train_some(const std::string& section) override;
  /// Of the ranks of a worker.
  Status agree(const StepOutcome& mine) override;
  Status note_end() override;
  Status train_round();
  Status train_one_step(bool is_common);
  void note_own_step(const StepOutcome& mine);
  Status end_round();

  std::unique_ptr<WorkerProgress> workers_;
  WorkerProgress::Totals seen_;                 // of all workers
  std::int64_t round_begin_ = 0;                // the step after which the round began
  bool ends_round_ = false;                     // this worker's step is its last one of the round
  bool called_ = false;                         // this worker knows that the round should end
  std::array<std::int64_t, 2> own_position_{};  // this rank's step and samples, at a round's end
};

}  // namespace stormo::train
