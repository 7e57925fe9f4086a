#include <stormo/train/run/rounds_run.h>

#include <stormo/plan/project.h>
#include <stormo/train/loop/server_report.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

Status RoundsRun::prepare() {
  workers_ = std::make_unique<WorkerProgress>(run_.world);
  return CommonRun::prepare();
}

Status RoundsRun::train_some(const std::string& section) {
  STORMO_RETURN_IF_ERROR(train_round());
  STORMO_RETURN_IF_ERROR(meet(section, /*agreed=*/false));
  if (run_.signal != 0) return {};
  run_.state.step = own_position_[0];
  run_.state.samples = own_position_[1];
  return {};
}

Status RoundsRun::train_round() {
  STORMO_RETURN_IF_ERROR(model_.store().served()->join());
  STORMO_RETURN_IF_ERROR(run_.world.barrier());  // an average waits for all that have joined
  const std::int64_t target = run_.next_common_step();
  std::int64_t& step = run_.state.step;
  round_ = {};
  round_begin_ = step;
  called_ = false;
  const bool one_rank = worker_part(run_.setup.plan.mesh, 0).parts == 1;  // else agree() says
  for (ends_round_ = false; step < target && !ends_round_;) {
    if (one_rank) called_ = workers_->called();
    ends_round_ = called_;  // the step that follows leaves nothing behind
    const std::string section = "step " + std::to_string(step + 1);
    run_.world.set_section(section);
    STORMO_RETURN_IF_ERROR(train_one_step(step + 1 == target).within(section));
    if (was_told()) workers_->call();
    if (step < target) STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false));
  }
  STORMO_RETURN_IF_ERROR(model_.store().served()->leave());
  return end_round();
}

Status RoundsRun::train_one_step(bool is_common) {
  const std::int64_t number = run_.state.step + 1;
  begin_step(number);
  const std::int64_t before = has_centre(run_.setup.plan) ? 0 : round_begin_;  // copies stay
  STORMO_ASSIGN_OR_RETURN(
      const StepOutcome outcome,
      model_.runner().step(run_.learning_rate,
                           {.number = number - before, .closes = is_common || ends_round_}));
  note_own_step(outcome);
  return {};
}

// The ranks of a worker do the same steps.
Status RoundsRun::agree(const StepOutcome& mine) {
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks,
                          model_.groups().over({plan::kWorkerAxis}));
  std::array<double, kAgreedNumbers> sums{mine.loss_sum, static_cast<double>(mine.samples),
                                          workers_->called() ? 1.0 : 0.0};
  STORMO_RETURN_IF_ERROR(add_up(*ranks, sums));
  called_ = sums[2] > 0;
  return {};
}

void RoundsRun::note_own_step(const StepOutcome& mine) {
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  workers_->add_step(mine.loss_sum, mine.samples);
  ++run_.state.step;
  run_.state.samples += loaded_samples();
  const WorkerProgress::Totals now = workers_->totals();
  const auto samples = now.samples - seen_.samples;
  if (samples > 0) {
    const double loss_sum = now.loss_sum - seen_.loss_sum;
    run_.step_loss = loss_sum / static_cast<double>(samples);
    progress_.note_loss(loss_sum, static_cast<double>(samples), 1);
  }
  progress_.log().add(samples);
  seen_ = now;
}

// What is saved is the position of the slowest; each goes on from its own.
Status RoundsRun::end_round() {
  run_.world.set_section("after step " + std::to_string(run_.state.step));
  own_position_ = {run_.state.step, run_.state.samples};
  STORMO_RETURN_IF_ERROR(take_slowest_position());
  STORMO_ASSIGN_OR_RETURN(agreed_, agree_on(run_, round_));
  if (run_.world.rank() == 0) workers_->clear();
  return {};
}

Status RoundsRun::note_end() {
  STORMO_RETURN_IF_ERROR(CommonRun::note_end());
  return note_servers(run_, *model_.store().served());
}

}  // namespace stormo::train
