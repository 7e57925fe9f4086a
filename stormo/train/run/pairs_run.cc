#include <stormo/train/run/pairs_run.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <stormo/parallel/axes.h>
#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {

Status PairsRun::prepare() {
  if (!device_of(*run_.setup.task.module).is_cpu()) {
    return invalid_argument(
        "ranks that mix in pairs change parameters in host memory beside their steps: train on the "
        "CPU, or choose another strategy.topology than pairs");
  }
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks,
                          model_.groups().over({parallel::kReplicaAxis}));
  record_.period = run_.options.strategy.period;
  pairs_ = PairMeans::create(*ranks, dynamic_cast<FusedOptimizer&>(model_.store().optimizer()),
                             {.seed = run_.options.seed, .period = record_.period});
  agreed_step_ = run_.state.step;
  return CommonRun::prepare();
}

Status PairsRun::train_some(const std::string& section) {
  STORMO_RETURN_IF_ERROR(train_round());
  return meet(section, /*agreed=*/false);
}

// Ranks that were called may have done different numbers of steps.
Status PairsRun::train_round() {
  const std::int64_t target = run_.next_common_step();
  std::int64_t& step = run_.state.step;
  round_ = {};
  STORMO_RETURN_IF_ERROR(pairs_->begin());
  for (;;) {
    const bool closes = pairs_->called() || step + 1 == target;
    const std::string section = "step " + std::to_string(step + 1);
    run_.world.set_section(section);
    // the step that closes ends with the average of all, and so without others
    if (closes) STORMO_RETURN_IF_ERROR(pairs_->end().within(section));
    STORMO_RETURN_IF_ERROR(train_one_step(closes).within(section));
    if (closes) return end_round();
    STORMO_RETURN_IF_ERROR(pairs_->after_step(step).within(section));
    if (was_told()) pairs_->call();
    STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false));
  }
}

Status PairsRun::train_one_step(bool closes) {
  begin_step(run_.state.step + 1);
  // no period is over in a step that does not close
  STORMO_ASSIGN_OR_RETURN(
      const StepOutcome outcome,
      model_.runner().step(run_.learning_rate, {.number = 1, .closes = closes}));
  note_own_step(outcome);
  return {};
}

void PairsRun::note_own_step(const StepOutcome& mine) {
  ++run_.state.step;
  run_.state.samples += loaded_samples();
  progress_.log().add(loaded_samples());
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  if (!progress_.knows_losses() && round_.samples > 0) {  // then nothing better is known
    run_.step_loss = round_.loss_sum / static_cast<double>(round_.samples);
  }
}

// In the step that closes, before it is noted.
Status PairsRun::agree(const StepOutcome& mine) {
  const StepOutcome all{.loss_sum = round_.loss_sum + mine.loss_sum,
                        .samples = round_.samples + mine.samples};
  std::array others{model_.store().consensus_squares(), static_cast<double>(pairs_->taken())};
  STORMO_ASSIGN_OR_RETURN(agreed_, agree_on(run_, all, others));
  const double distance = std::sqrt(others[0] / run_.world.size());
  record_.averages = std::llround(others[1]);
  record_.mean_distance += (distance - record_.mean_distance) / static_cast<double>(++meetings_);
  record_.max_distance = std::max(record_.max_distance, distance);
  const auto samples = static_cast<double>(agreed_.samples);
  run_.step_loss = agreed_.loss_sum / samples;
  progress_.note_loss(agreed_.loss_sum, samples, run_.state.step + 1 - agreed_step_);
  return {};
}

// All go on from there as if they resumed.
Status PairsRun::end_round() {
  const std::int64_t own = run_.state.step;
  STORMO_RETURN_IF_ERROR(take_slowest_position());
  agreed_step_ = run_.state.step;
  if (agreed_step_ != own) load_from(run_.sampler);
  return {};
}

Status PairsRun::note_end() {
  run_.end.averaging = record_;
  return CommonRun::note_end();
}

}  // namespace stormo::train
