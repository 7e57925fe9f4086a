#include <stormo/train/run/lock_step_run.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>
#include <stormo/train/loop/population_report.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/step/variance_freeze.h>

namespace stormo::train {

Status LockStepRun::prepare() {
  const plan::StepPlan& plan = run_.setup.plan;
  agreed_step_ = run_.state.step;
  watch_ = make_watch();
  steps_overlap_ = longest_delay(plan) > 0;
  if (is_diverged(plan)) {
    const auto meeting = std::ranges::find_if(plan.actions, [&plan](const plan::Action& a) {
      return (row_of(a.kind).averages() && !averages_some(plan, a)) ||
             row_of(a.kind).of_population();
    });
    averaging_ = std::make_unique<AveragingSchedule>(run_.options.averaging, meeting->every);
    averaged_at_ = std::chrono::steady_clock::now();
  }
  return CommonRun::prepare();
}

Status LockStepRun::train() {
  try_overlap();
  STORMO_RETURN_IF_ERROR(follow_averages());
  return CommonRun::train();
}

Status LockStepRun::train_some(const std::string& section) {
  STORMO_RETURN_IF_ERROR(train_one_step().within(section));
  if (!agrees_) return progress_.show(/*agreed=*/false);
  STORMO_RETURN_IF_ERROR(train_until_equal(section));
  STORMO_RETURN_IF_ERROR(meet(section, /*agreed=*/true));
  averaged_at_ = std::chrono::steady_clock::now();  // an evaluation is no part of a period
  return {};
}

// Where ranks agree in other steps than those that make all parameters and state equal, and then
// are to stop or to save, one more step ends all periods.
Status LockStepRun::train_until_equal(const std::string& section) {
  const plan::StepPlan& plan = run_.setup.plan;
  const bool asked = run_.signal != 0 || agreed_.save_now;
  if (!asked || !(is_staggered(plan) || averages_slots(plan)) || closed_) return {};
  const int signal = std::exchange(run_.signal, 0);
  const bool save_now = agreed_.save_now;
  STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/true));
  closes_next_ = true;
  STORMO_RETURN_IF_ERROR(train_one_step().within(section));
  closes_next_ = false;
  if (run_.signal == 0 && run_.state.step < run_.steps) run_.signal = signal;
  agreed_.save_now = agreed_.save_now || save_now;
  return {};
}

Status LockStepRun::train_one_step() {
  STORMO_RETURN_IF_ERROR(follow_density());
  STORMO_RETURN_IF_ERROR(follow_freeze());
  begin_step(run_.state.step + 1);
  agrees_ = false;
  const StepAt at = next_step();
  closed_ = at.closes;
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, model_.runner().step(run_.learning_rate, at));
  STORMO_RETURN_IF_ERROR(end_step(outcome));
  return overlap_ ? try_other_plan() : Status();
}

StepAt LockStepRun::next_step() const {
  const std::int64_t number = run_.state.step + 1;
  const bool every = averaging_ ? averaging_->is_warmup(number) : !steps_overlap_;
  const bool closes = number == run_.next_common_step() || every || closes_next_;
  return {.number = number, .closes = closes};
}

bool LockStepRun::ends_period(std::int64_t number) const {
  const TrainerOptions& o = run_.options;
  const bool saves = !o.checkpoint.directory.empty() && is_due(number, o.checkpoint.every);
  return !averaging_ || averaging_->is_warmup(number) || number == run_.steps || saves ||
         is_due(number, averaging_->period()) || is_due(number, o.eval_every) ||
         is_due(number, o.verify_every);
}

// Every rank learns the exact mean loss of the step, or of all since the ranks agreed before.
Status LockStepRun::agree(const StepOutcome& mine) {
  agrees_ = true;
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  const std::int64_t step = run_.state.step + 1;
  const bool everything = step == run_.next_common_step();
  const std::span<double> shown = progress_.numbers_to_agree();
  std::vector<double> looks;
  if (watch_) looks = watch_->look(everything);
  std::vector<double> others(shown.begin(), shown.end());
  others.insert(others.end(), looks.begin(), looks.end());
  if (averaging_) std::ranges::copy(of_average(), std::back_inserter(others));
  STORMO_ASSIGN_OR_RETURN(agreed_, agree_on(run_, std::exchange(round_, {}), others));
  std::ranges::copy(std::span(others).first(shown.size()), shown.begin());
  std::ranges::copy(std::span(others).subspan(shown.size(), looks.size()), looks.begin());
  if (averaging_) std::ranges::copy(std::span(others).last(averaged_.size()), averaged_.begin());
  progress_.note_agreed();
  if (watch_) {
    STORMO_RETURN_IF_ERROR(watch_->judge(looks, step));
    const bool saves_now = agreed_.save_now || run_.signal != 0;
    if (saves_now && !everything) STORMO_RETURN_IF_ERROR(watch_->check_all(step));
  }
  const auto samples = static_cast<double>(agreed_.samples);
  run_.step_loss = agreed_.loss_sum / samples;
  progress_.note_loss(agreed_.loss_sum, samples, step - agreed_step_);
  run_.end.skipped_steps += mine.skipped ? 1 : 0;  // equal on all ranks
  return {};
}

/// Of this rank: the squares of its distance from the average, and seconds since the one before.
LockStepRun::OfAverage LockStepRun::of_average() {
  const Duration time = std::chrono::steady_clock::now() - averaged_at_;
  return {model_.store().consensus_squares(), std::chrono::duration<double>(time).count()};
}

Status LockStepRun::end_step(const StepOutcome& mine) {
  ++run_.state.step;
  run_.state.samples += loaded_samples();
  progress_.end_step(loaded_samples());
  run_.gradient_norm = mine.gradient_norm;
  if (agrees_) return note_agreement();
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  if (!progress_.knows_losses() && round_.samples > 0) {  // then nothing better is known
    run_.step_loss = round_.loss_sum / static_cast<double>(round_.samples);
  }
  return {};
}

void LockStepRun::end_unknown_step() {
  ++run_.state.step;
  run_.state.samples += loaded_samples();
  progress_.log().add(loaded_samples());
  agreed_step_ = run_.state.step;
  run_.step_loss = std::numeric_limits<double>::quiet_NaN();
}

Status LockStepRun::note_agreement() {
  const std::int64_t steps = run_.state.step - std::exchange(agreed_step_, run_.state.step);
  if (!averaging_) return {};
  const int before = averaging_->period();
  const auto [squares, seconds] = averaged_;
  const std::chrono::duration<double> mean(seconds / run_.world.size());
  averaging_->note(std::sqrt(squares / data_part(run_.setup.plan.mesh, 0).parts),
                   std::chrono::duration_cast<Duration>(mean), steps);
  const bool ends_warmup = run_.state.step == run_.options.averaging.warmup_steps;
  return averaging_->period() == before && !ends_warmup ? Status() : follow_period();
}

// Warm-up is synchronous training, in which what an average changes is no outer gradient.
Status LockStepRun::follow_period() {
  plan::StepPlan plan = run_.setup.plan;
  if (averaging_->is_warmup(run_.state.step + 1)) {
    std::erase_if(plan.actions,
                  [](const plan::Action& a) { return row_of(a.kind).outer_updates(); });
    for (plan::Action& a : plan.actions) {
      if (row_of(a.kind).averages()) a.asynchronous = false, a.codec = Codec::kNone;
    }
  }
  for (plan::Action& a : plan.actions) {
    const plan::ActionRow& row = row_of(a.kind);
    if (row.averages_slot || averages_some(plan, a)) continue;  // they have periods of their own
    if (row.averages() || row.outer_updates() || row.all_batches) a.every = averaging_->period();
  }
  return model_.runner().set_plan(plan);
}

// Which form of the plan makes steps shortest is found out by the first steps, between which ranks
// compare their times.
void LockStepRun::try_overlap() {
  const Overlap wanted = overlap_of(run_.options.gradients);
  if (wanted.kind != Overlap::Kind::kMeasured || !may_overlap(run_.setup.plan)) return;
  const std::int64_t bytes = bytes_of(trainable_parameters(*run_.setup.task.module));
  overlap_ = std::make_unique<OverlapTrial>(run_.world, wanted, bytes);
}

Status LockStepRun::try_other_plan() {
  STORMO_ASSIGN_OR_RETURN(const bool changed, overlap_->step_done(run_.world));
  return changed ? adopt_plan() : Status();
}

// Where parameters diverge, averages have a warm-up.
std::int64_t LockStepRun::warmup_of_density() const {
  return averaging_ ? 0 : run_.options.averaging.warmup_steps;
}

// Each density of a warm-up has a plan of its own.
Status LockStepRun::follow_density() {
  if (warmup_of_density() == 0) return {};
  const double density = codec::density_in_step(run_.options.gradients.codec.density,
                                                run_.state.step + 1, warmup_of_density());
  return std::exchange(density_, density) == density ? Status() : adopt_plan();
}

// The first steps of 1-bit Adam have a plan of their own.
Status LockStepRun::follow_freeze() {
  const bool is_frozen = run_.state.step >= run_.setup.freeze_after;
  return std::exchange(is_frozen_, is_frozen) == is_frozen ? Status() : adopt_plan();
}

// What codecs keep goes on with the next plan.
Status LockStepRun::adopt_plan() {
  const Overlap overlap = overlap_ ? overlap_->current() : Overlap::at_the_end();
  STORMO_ASSIGN_OR_RETURN(plan::StepPlan plan, overlapped(run_.setup.plan, overlap));
  if (!is_frozen_) plan = plan_before_freeze(std::move(plan));
  return model_.runner().set_plan(
      with_density_of_step(std::move(plan), run_.state.step + 1, warmup_of_density()));
}

Status LockStepRun::note_end() {
  const PopulationStore* const population = model_.store().population();
  if (population != nullptr) {
    STORMO_ASSIGN_OR_RETURN(run_.end.population, population_record(run_.world, *population));
  } else if (averaging_) {
    run_.end.averaging = averaging_->record();
  }
  return CommonRun::note_end();
}

}  // namespace stormo::train
