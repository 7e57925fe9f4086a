#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stormo/observe/records.h>
#include <stormo/train/loop/pair_means.h>
#include <stormo/train/run/common_run.h>

namespace stormo::train {

/// A run whose ranks share no steps, and mix in pairs at any time. They meet where all need equal
/// parameters: to evaluate, to save, and at the end. There a step of each rank closes with the
/// average of all.
class PairsRun final : public CommonRun {
 public:
  explicit PairsRun(RunSetup& setup) : CommonRun(setup) {}

 private:
  Status prepare() override;
  Status train_some(const std::string& section) override;
  Status agree(const StepOutcome& mine) override;
  Status note_end() override;
  Status train_round();
  Status train_one_step(bool closes);
  void note_own_step(const StepOutcome& mine);
  Status end_round();

  std::unique_ptr<PairMeans> pairs_;
  std::int64_t agreed_step_ = 0;  // after which all ranks met last
  std::int64_t meetings_ = 0;
  observe::AveragingRecord record_;
};

}  // namespace stormo::train
