#include <stormo/train/run/session_run.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <string>
#include <utility>

#include <stormo/plan/project.h>
#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/loop/server_report.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

/// Patience has run out: no signal, but an end.
constexpr int kEnough = -1;

std::uint64_t number(std::int64_t n) { return static_cast<std::uint64_t>(n); }

}  // namespace

// The first worker has made the shards, loaded a checkpoint, and deals the steps; others are told.
Status SessionRun::prepare() {
  server::WorkerSession& session = *run_.options.session;
  server::Ledger& ledger = session.ledger();
  session.pulse().get_on("start");
  if (run_.leads) {
    STORMO_RETURN_IF_ERROR(ledger.deal({.first_step = number(run_.state.step),
                                        .steps = number(run_.steps),
                                        .first_sample = run_.state.samples,
                                        .by_speed = run_.options.balance_by_speed,
                                        .portions = portions_of(run_.options)}));
  }
  STORMO_ASSIGN_OR_RETURN(const server::Ledger::Terms terms, ledger.terms());
  run_.state.step = static_cast<std::int64_t>(terms.first_step);
  run_.state.samples = run_.first_sample = terms.first_sample;
  run_.steps = static_cast<std::int64_t>(terms.steps);
  steps_ = std::unique_ptr<SessionSteps>(new SessionSteps{
      .session = session,
      .ledger = ledger,
      .terms = terms,
      .loader = TaskLoader(run_.setup.train, run_.options, session.worker(), session.workers(),
                           data_part(run_.setup.plan.mesh, run_.world.rank()), terms)});
  if (terms.portions > 0 && run_.leads) {
    steps_->coordinator = std::make_unique<server::StepCoordinator>(
        server::StepCoordinator::Options{.servers = session.coordinator(),
                                         .terms = terms,
                                         .optimizer = run_.options.optimizer,
                                         .learning_rate =
                                             [this](std::uint64_t step) {
                                               return run_.rate_of(static_cast<std::int64_t>(step));
                                             },
                                         .numbers = run_.state.lbfgs_numbers});
    // before others read weights
    STORMO_RETURN_IF_ERROR(steps_->coordinator->status().within("resume"));
  }
  evaluation_.go_beside(
      {.alive = [&session] { session.pulse().get_on("evaluate"); },
       .save = [this](const auto& save) { return at_position(steps_->position, save); }});
  return run_.leads ? session.open() : Status();
}

// The first worker tells the ledger what all of its ranks have done.
Status SessionRun::agree(const StepOutcome& mine) {
  STORMO_ASSIGN_OR_RETURN(agreed_, agree_on(run_, mine));
  return {};
}

Status SessionRun::train() {
  begin_training();
  for (bool more = true; more;) {
    STORMO_ASSIGN_OR_RETURN(more, take_turn(*steps_));
  }
  progress_.log().pause();
  return {};
}

// False: there is nothing left to do.
Result<bool> SessionRun::take_turn(SessionSteps& s) {
  if (!run_.leads && s.session.is_chief()) STORMO_RETURN_IF_ERROR(take_over());
  int stop = StopSignal::received();
  if (run_.options.on_usr1 == OnUsr1::kSaveAndExit && StopSignal::take_usr1() && stop == 0) {
    stop = SIGUSR1;
  }
  if (stop == 0) stop = run_.signal;  // another rank of this worker was told
  if (s.coordinator) {
    STORMO_RETURN_IF_ERROR(s.coordinator->status());
    run_.end.converged = s.coordinator->has_converged();
    if (run_.end.converged) evaluation_.set_enough();
  }
  if (evaluation_.is_enough() && stop == 0) stop = kEnough;
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
      STORMO_RETURN_IF_ERROR(model_.store().served()->leave());
    }
    if (is_over) {
      STORMO_RETURN_IF_ERROR(end_session(turn));
      return false;
    }
    s.session.pulse().wait();
    const Duration look = turn.again > Duration::zero() ? std::min(turn.again, kLook) : kLook;
    const Interval waits(run_.lanes, Lane::kWait, "wait for other workers");
    STORMO_RETURN_IF_ERROR(s.ledger.wait(Deadline::after(look)));
  }
  STORMO_RETURN_IF_ERROR(follow_others(s, turn));
  return true;
}

Status SessionRun::do_task(SessionSteps& s, const server::Ledger::Turn& turn) {
  s.task = *turn.task;
  const auto step = static_cast<std::int64_t>(s.task.step);
  const bool own = s.terms.portions == 0 && s.task.part == s.session.worker();
  if (s.terms.portions > 0)
    model_.store().served()->begin_portion(s.task.part, s.task.step - s.terms.first_step);
  const std::string section = "step " + std::to_string(step + 1);
  run_.world.set_section(section);
  s.session.pulse().get_on(section);
  if (!std::exchange(s.member, true)) STORMO_RETURN_IF_ERROR(model_.store().served()->join());
  const int streams = random_stream(run_.setup.plan, run_.world.size() - 1) + 1;  // of a worker
  seed_step(run_.options.seed, step,
            s.task.part * streams + random_stream(run_.setup.plan, run_.world.rank()));
  run_.lanes.set_step(step + 1);
  run_.learning_rate = run_.rate_of(step);
  // a step of another share pulls before it and pushes after it
  const StepAt at = own ? StepAt{.number = ++s.own_steps, .closes = turn.ends_share}
                        : StepAt{.number = 1, .closes = true};
  const Result<StepOutcome> done = model_.runner().step(run_.learning_rate, at);
  const bool alone = run_.world.size() == 1;
  if (alone && done.status().code() == Code::kPeerLost && model_.store().served()->join().ok()) {
    // it was silent for too long, and others went on without it: what it computed is lost
    model_.store().zero_grad();
    return {};
  }
  STORMO_RETURN_IF_ERROR(done.status().within(section));
  s.outcome =
      alone ? server::Ledger::Outcome{.loss_sum = done->loss_sum, .samples = done->samples}
            : server::Ledger::Outcome{.loss_sum = agreed_.loss_sum, .samples = agreed_.samples};
  return {};
}

// Step and samples of the run are those of all workers together: shares need not be equally far.
// A worker that may become the first one knows them, too.
Status SessionRun::follow_others(SessionSteps& s, const server::Ledger::Turn& turn) {
  // the last batch of an epoch may be smaller than others
  const auto step_of = [&s](const server::Ledger::Totals& done) {
    return static_cast<std::int64_t>(s.loader.step_at(s.terms.first_sample + done.samples));
  };
  const std::int64_t step = step_of(turn.totals), before = step_of(s.totals);
  s.position = turn.position;
  if (step > before) {  // losses of parts of a step differ too much to be shown
    const std::int64_t samples = turn.totals.samples - s.totals.samples;
    const double loss_sum = turn.totals.loss_sum - s.totals.loss_sum;
    run_.step_loss = loss_sum / static_cast<double>(samples);
    progress_.note_loss(loss_sum, static_cast<double>(samples), step - before);
    progress_.log().add(samples, step - before);
    s.totals = turn.totals;
  }
  const std::int64_t common = run_.next_common_step();
  run_.state.samples = s.terms.first_sample + turn.totals.samples;
  if (!run_.leads || step < common || common == run_.steps) {
    if (step > run_.state.step && step < run_.steps) {  // the last one is shown at the end
      run_.state.step = step;
      STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false));
    }
    return {};
  }
  run_.state.step = common;
  STORMO_RETURN_IF_ERROR(progress_.show(/*agreed=*/false));
  return do_what_is_due(common);
}

// What is saved is the step before which nothing is left to do. Later steps that are done already
// are done again after a resume.
Status SessionRun::do_what_is_due(std::int64_t step) {
  progress_.log().pause();
  const bool alone = run_.world.size() == 1;
  if (alone ? run_.state.save_failed() : agreed_.save_failed) {
    STORMO_RETURN_IF_ERROR(saves_.note_last());
  }
  if (is_due(step, run_.options.eval_every)) STORMO_RETURN_IF_ERROR(evaluate());
  const std::uint64_t position = steps_->position;
  if (is_due(step, run_.options.checkpoint.every) &&
      !saves_.has(static_cast<std::int64_t>(position))) {
    STORMO_RETURN_IF_ERROR(at_position(
        position, [this] { return saves_.save(run_.options.checkpoint.asynchronous); }));
  }
  progress_.log().resume();
  return {};
}

Status SessionRun::at_position(std::uint64_t position, const std::function<Status()>& save) {
  std::unique_lock<std::mutex> pause;
  if (steps_->coordinator) {  // weights, vectors and position of the same step
    pause = steps_->coordinator->pause();
    STORMO_ASSIGN_OR_RETURN(const server::Ledger::Turn now, steps_->ledger.look());
    position = now.position;
    run_.state.lbfgs_numbers = steps_->coordinator->numbers();
  }
  const std::int64_t step = std::exchange(run_.state.step, static_cast<std::int64_t>(position));
  const std::int64_t samples = std::exchange(run_.state.samples, steps_->loader.cursor(position));
  const Status saved = save();
  run_.state.step = step;
  run_.state.samples = samples;
  return saved;
}

// The first worker is the last one to leave: what others pushed is then in what it saves.
Status SessionRun::end_session(const server::Ledger::Turn& last) {
  SessionSteps& s = *steps_;
  run_.signal = std::max(0, last.stop_signal);
  s.session.pulse().get_on("the end of its steps");
  STORMO_RETURN_IF_ERROR(s.ledger.leave());
  server::Ledger::Turn turn = last;
  if (!run_.leads) {
    STORMO_ASSIGN_OR_RETURN(turn, stand_by(s, last));
  }
  if (!run_.leads) {
    const Status finished = s.session.finish();
    return s.session.is_over() ? Status() : finished;
  }
  if (s.coordinator) STORMO_RETURN_IF_ERROR(s.coordinator->finish());
  while (turn.others > 0) {
    s.session.pulse().wait();
    const Interval waits(run_.lanes, Lane::kWait, "wait for other workers");
    STORMO_RETURN_IF_ERROR(s.ledger.wait(Deadline::after(kLook)));
    STORMO_ASSIGN_OR_RETURN(turn, s.ledger.look());
  }
  STORMO_RETURN_IF_ERROR(follow_others(s, turn));
  if (turn.all_done) run_.state.step = run_.steps;
  return progress_.show(/*agreed=*/false, /*last=*/true);
}

Status SessionRun::finish() {
  steps_->session.pulse().get_on("finish");
  steps_->session.pulse().finish();
  STORMO_RETURN_IF_ERROR(TrainingRun::finish());
  return steps_->session.finish();
}

Status SessionRun::save_last() {
  return at_position(steps_->position, [this] { return TrainingRun::save_last(); });
}

Status SessionRun::note_end() {
  STORMO_RETURN_IF_ERROR(note_servers(run_, *model_.store().served()));
  STORMO_ASSIGN_OR_RETURN(const server::Ledger::Turn turn, steps_->ledger.look());
  for (const server::Ledger::Losses& l : turn.losses) {
    run_.end.lost_workers.push_back({.worker = l.worker, .lost = l.lost, .came_back = l.came_back});
  }
  return {};
}

}  // namespace stormo::train
