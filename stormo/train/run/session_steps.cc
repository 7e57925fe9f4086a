// Steps of a worker of server processes. The ledger says which. No step waits for all of them: the
// first worker evaluates and saves while others go on, and all stop by themselves.
#include <stormo/train/run/session_steps.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <stormo/plan/project.h>
#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/run/training_run.h>

namespace stormo::train {
namespace {

/// Patience has run out: no signal, but an end.
constexpr int kEnough = -1;

std::uint64_t number(std::int64_t n) { return static_cast<std::uint64_t>(n); }

}  // namespace

// The first worker has made the shards, loaded a checkpoint, and deals the steps; others are told.
Status TrainingRun::begin_session() {
  server::WorkerSession& session = *options_.session;
  server::Ledger& ledger = session.ledger();
  session.pulse().get_on("start");
  if (is_first()) {
    STORMO_RETURN_IF_ERROR(ledger.deal({.first_step = number(state_.step),
                                        .steps = number(steps_),
                                        .first_sample = state_.samples,
                                        .by_speed = options_.balance_by_speed,
                                        .portions = portions_of(options_)}));
  }
  STORMO_ASSIGN_OR_RETURN(const server::Ledger::Terms terms, ledger.terms());
  state_.step = static_cast<std::int64_t>(terms.first_step);
  state_.samples = first_sample_ = terms.first_sample;
  steps_ = static_cast<std::int64_t>(terms.steps);
  session_ = std::unique_ptr<SessionSteps>(new SessionSteps{
      .session = session,
      .ledger = ledger,
      .terms = terms,
      .loader = TaskLoader(setup_.train, options_, session.worker(), session.workers(),
                           data_part(setup_.plan.mesh, world_.rank()), terms)});
  if (terms.portions > 0 && is_first()) {
    session_->coordinator =
        std::make_unique<server::StepCoordinator>(server::StepCoordinator::Options{
            .servers = session.coordinator(),
            .terms = terms,
            .optimizer = options_.optimizer,
            .learning_rate =
                [this](std::uint64_t step) { return rate_of(static_cast<std::int64_t>(step)); },
            .numbers = state_.lbfgs_numbers});
    // before others read weights
    STORMO_RETURN_IF_ERROR(session_->coordinator->status().within("resume"));
  }
  return is_first() ? session.open() : Status();
}

Status TrainingRun::train_in_session() {
  started_training_ = true;
  log_.resume();
  for (bool more = true; more;) {
    STORMO_ASSIGN_OR_RETURN(more, take_turn(*session_));
  }
  log_.pause();
  return {};
}

// False: there is nothing left to do.
Result<bool> TrainingRun::take_turn(SessionSteps& s) {
  if (!is_first() && s.session.is_chief()) STORMO_RETURN_IF_ERROR(take_over());
  int stop = StopSignal::received();
  if (options_.on_usr1 == OnUsr1::kSaveAndExit && StopSignal::take_usr1() && stop == 0) {
    stop = SIGUSR1;
  }
  if (stop == 0) stop = signal_;  // another rank of this worker was told
  if (s.coordinator) {
    STORMO_RETURN_IF_ERROR(s.coordinator->status());
    end_.converged = s.coordinator->has_converged();
    enough_ = enough_ || end_.converged;
  }
  if (enough_ && stop == 0) stop = kEnough;
  if (stop != 0) STORMO_RETURN_IF_ERROR(s.ledger.stop(stop));
  STORMO_ASSIGN_OR_RETURN(const server::Ledger::Turn turn,
                          s.ledger.next(std::exchange(s.outcome, {})));
  if (turn.task) {
    STORMO_RETURN_IF_ERROR(do_task(s, turn));
    s.session.pulse().end_step();
  } else {
    const bool is_over = turn.all_done || turn.stop_signal != 0;
    // with portions nobody waits for it at the shards
    if ((is_over || s.terms.portions == 0) && std::exchange(s.member, false)) {
      STORMO_RETURN_IF_ERROR(store_->leave());
    }
    if (is_over) {
      STORMO_RETURN_IF_ERROR(end_session(turn));
      return false;
    }
    s.session.pulse().wait();
    const Duration look = turn.again > Duration::zero() ? std::min(turn.again, kLook) : kLook;
    const Interval waits(lanes_, Lane::kWait, "wait for other workers");
    STORMO_RETURN_IF_ERROR(s.ledger.wait(Deadline::after(look)));
  }
  STORMO_RETURN_IF_ERROR(follow_others(s, turn));
  return true;
}

Status TrainingRun::do_task(SessionSteps& s, const server::Ledger::Turn& turn) {
  s.task = *turn.task;
  const auto step = static_cast<std::int64_t>(s.task.step);
  const bool own = s.terms.portions == 0 && s.task.part == s.session.worker();
  if (s.terms.portions > 0) store_->begin_portion(s.task.part, s.task.step - s.terms.first_step);
  const std::string section = "step " + std::to_string(step + 1);
  world_.set_section(section);
  s.session.pulse().get_on(section);
  if (!std::exchange(s.member, true)) STORMO_RETURN_IF_ERROR(store_->join());
  const int streams = random_stream(setup_.plan, world_.size() - 1) + 1;  // of a worker
  seed_step(options_.seed, step, s.task.part * streams + random_stream(setup_.plan, world_.rank()));
  lanes_.set_step(step + 1);
  learning_rate_ = rate_of(step);
  // a step of another share pulls before it and pushes after it
  const StepAt at = own ? StepAt{.number = ++s.own_steps, .closes = turn.ends_share}
                        : StepAt{.number = 1, .closes = true};
  const Result<StepOutcome> done = runner_->step(learning_rate_, at);
  const bool alone = world_.size() == 1;
  if (alone && done.status().code() == Code::kPeerLost && store_->join().ok()) {
    // it was silent for too long, and others went on without it: what it computed is lost
    store_->zero_grad();
    return {};
  }
  STORMO_RETURN_IF_ERROR(done.status().within(section));
  s.outcome = alone ? server::Ledger::Outcome{.loss_sum = done->loss_sum, .samples = done->samples}
                    : s.agreed;
  return {};
}

// Step and samples of the run are those of all workers together: shares need not be equally far.
// A worker that may become the first one knows them, too.
Status TrainingRun::follow_others(SessionSteps& s, const server::Ledger::Turn& turn) {
  // the last batch of an epoch may be smaller than others
  const auto step_of = [&s](const server::Ledger::Totals& done) {
    return static_cast<std::int64_t>(s.loader.step_at(s.terms.first_sample + done.samples));
  };
  const std::int64_t step = step_of(turn.totals), before = step_of(s.totals);
  s.position = turn.position;
  if (step > before) {  // losses of parts of a step differ too much to be shown
    const std::int64_t samples = turn.totals.samples - s.totals.samples;
    const double loss_sum = turn.totals.loss_sum - s.totals.loss_sum;
    step_loss_ = loss_sum / static_cast<double>(samples);
    note_loss(loss_sum, static_cast<double>(samples), step - before);
    log_.add(samples, step - before);
    s.totals = turn.totals;
  }
  const std::int64_t common = next_common_step();
  state_.samples = s.terms.first_sample + turn.totals.samples;
  if (!is_first() || step < common || common == steps_) {
    if (step > state_.step && step < steps_) {  // the last one is shown at the end
      state_.step = step;
      STORMO_RETURN_IF_ERROR(show_progress());
    }
    return {};
  }
  state_.step = common;
  STORMO_RETURN_IF_ERROR(show_progress());
  log_.pause();
  const bool save_failed = world_.size() == 1 ? state_.save_failed() : save_failed_;
  if (save_failed) STORMO_RETURN_IF_ERROR(note_save(state_.finish_save()));
  if (options_.eval_every > 0 && common % options_.eval_every == 0) {
    const std::shared_ptr<void> shown = readable();
    STORMO_RETURN_IF_ERROR(evaluate_all(/*at_end=*/false));
  }
  if (options_.checkpoint.every > 0 && common % options_.checkpoint.every == 0) {
    STORMO_RETURN_IF_ERROR(save_in_session(static_cast<std::int64_t>(turn.position)));
  }
  log_.resume();
  return {};
}

// What is saved is the step before which nothing is left to do. Later steps that are done already
// are done again after a resume.
Status TrainingRun::save_in_session(std::int64_t position) {
  if (position == saving_step_) return {};
  return at_position(number(position),
                     [this] { return save_when_due(options_.checkpoint.asynchronous); });
}

Status TrainingRun::at_position(std::uint64_t position, const std::function<Status()>& save) {
  std::unique_lock<std::mutex> pause;
  if (session_->coordinator) {  // weights, vectors and position of the same step
    pause = session_->coordinator->pause();
    STORMO_ASSIGN_OR_RETURN(const server::Ledger::Turn now, session_->ledger.look());
    position = now.position;
    state_.lbfgs_numbers = session_->coordinator->numbers();
  }
  const std::int64_t step = std::exchange(state_.step, static_cast<std::int64_t>(position));
  const std::int64_t samples = std::exchange(state_.samples, session_->loader.cursor(position));
  const Status saved = save();
  state_.step = step;
  state_.samples = samples;
  return saved;
}

// The first worker is the last one to leave: what others pushed is then in what it saves.
Status TrainingRun::end_session(const server::Ledger::Turn& last) {
  SessionSteps& s = *session_;
  signal_ = std::max(0, last.stop_signal);
  s.session.pulse().get_on("the end of its steps");
  STORMO_RETURN_IF_ERROR(s.ledger.leave());
  server::Ledger::Turn turn = last;
  if (!is_first()) {
    STORMO_ASSIGN_OR_RETURN(turn, stand_by(s, last));
  }
  if (!is_first()) {
    const Status finished = s.session.finish();
    return s.session.is_over() ? Status() : finished;
  }
  if (s.coordinator) STORMO_RETURN_IF_ERROR(s.coordinator->finish());
  while (turn.others > 0) {
    s.session.pulse().wait();
    const Interval waits(lanes_, Lane::kWait, "wait for other workers");
    STORMO_RETURN_IF_ERROR(s.ledger.wait(Deadline::after(kLook)));
    STORMO_ASSIGN_OR_RETURN(turn, s.ledger.look());
  }
  STORMO_RETURN_IF_ERROR(follow_others(s, turn));
  if (turn.all_done) state_.step = steps_;
  return show_progress(/*last=*/true);
}

}  // namespace stormo::train
