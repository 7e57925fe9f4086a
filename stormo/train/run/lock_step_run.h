#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/plan/action.h>
#include <stormo/train/loop/averaging_schedule.h>
#include <stormo/train/loop/state_watch.h>
#include <stormo/train/reduction/overlap_trial.h>
#include <stormo/train/run/common_run.h>

namespace stormo::train {

/// A run whose ranks do the same steps. They agree in each of them, or in some where steps overlap
/// or parameters diverge.
class LockStepRun : public CommonRun {
 public:
  explicit LockStepRun(RunSetup& setup) : CommonRun(setup) {}

 protected:
  Status prepare() override;
  Status train() override;
  Status agree(const StepOutcome& mine) override;
  /// Null: nothing is compared in steps.
  virtual std::unique_ptr<StateWatch> make_watch() { return StateWatch::create(run_, model_); }
  StateWatch* watch() { return watch_.get(); }
  Status train_one_step();
  /// The plan of the steps that come, where ranks average.
  Status follow_averages() { return averaging_ ? follow_period() : Status(); }
  /// Whether all ranks agree behind step `number` of the run, from 1: where they average behind it,
  /// or in every step.
  bool ends_period(std::int64_t number) const;
  /// Whether an outer update follows the average behind it, where the plan has one.
  bool has_outer_update(std::int64_t number) const { return !averaging_->is_warmup(number); }
  /// After a step whose loss this rank does not know.
  void end_unknown_step();

 private:
  using OfAverage = std::array<double, plan::kAveragedNumbers>;
  Status train_some(const std::string& section) override;
  Status train_until_equal(const std::string& section);
  Status note_end() override;
  StepAt next_step() const;
  Status end_step(const StepOutcome& mine);
  OfAverage of_average();
  Status note_agreement();
  Status follow_period();
  void try_overlap();
  Status try_other_plan();
  std::int64_t warmup_of_density() const;
  Status follow_density();
  Status follow_freeze();
  Status adopt_plan();

  std::unique_ptr<OverlapTrial> overlap_;         // null: the plan has one form only
  std::unique_ptr<AveragingSchedule> averaging_;  // and of tournaments; null: nothing diverges
  std::unique_ptr<StateWatch> watch_;
  double density_ = 1;  // of a warm-up, in the plan of this step
  bool steps_overlap_ = false;
  bool is_frozen_ = true;         // ranks exchange what the setup's plan says
  bool closes_next_ = false;      // the next step ends all periods
  bool closed_ = false;           // the last one did
  bool agrees_ = false;           // in this step
  std::int64_t agreed_step_ = 0;  // after which all ranks agreed last
  TimePoint averaged_at_{};       // likewise, and done what comes then
  OfAverage averaged_{};          // added up over all ranks
};

}  // namespace stormo::train
