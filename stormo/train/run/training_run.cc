#include <stormo/train/run/training_run.h>

#include <cstring>

#include <ATen/Parallel.h>

#include <stormo/base/rng.h>
#include <stormo/parallel/replicas/pairs.h>
#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/run/elastic_run.h>
#include <stormo/train/run/lock_step_run.h>
#include <stormo/train/run/pairs_run.h>
#include <stormo/train/run/rounds_run.h>
#include <stormo/train/run/session_run.h>
#include <stormo/train/state/saved_samples.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

/// On one rank the plan is that of any strategy, in which nothing diverges.
bool mixes_in_pairs(const RunSetup& setup) {
  const Strategy& s = setup.options.strategy;
  return s.kind == Strategy::Kind::kGossip && s.topology == parallel::kPairs &&
         is_diverged(setup.plan);
}

constexpr const char* kTooLarge =
    "none: no rank has the whole model, which takes more than 256 MiB; 'stormo sample' makes one "
    "from a checkpoint";

}  // namespace

std::unique_ptr<TrainingRun> TrainingRun::create(RunSetup& setup) {
  if (setup.elastic != nullptr) return std::make_unique<ElasticRun>(setup);
  if (setup.options.session) return std::make_unique<SessionRun>(setup);
  if (has_servers(setup.plan)) return std::make_unique<RoundsRun>(setup);
  if (mixes_in_pairs(setup)) return std::make_unique<PairsRun>(setup);
  return std::make_unique<LockStepRun>(setup);
}

TrainingRun::TrainingRun(RunSetup& setup)
    : run_(setup),
      model_(run_),
      progress_(run_, model_),
      saves_(run_),
      evaluation_(run_, model_, saves_) {}

TrainingRun::~TrainingRun() {
  model_.pass_no_events();
  run_.world.set_sink(nullptr);
}

Result<observe::EndRecord> TrainingRun::run() {
  const StopSignal stop;
  STORMO_RETURN_IF_ERROR(start());
  STORMO_RETURN_IF_ERROR(train());
  if (run_.leads) STORMO_RETURN_IF_ERROR(finish());
  if (run_.signal == 0) return run_.end;
  const std::string& directory = run_.options.checkpoint.directory;
  return Status(
      Code::kInterrupted,
      "SIG" + std::string(::sigabbrev_np(run_.signal)) + " after step " +
          std::to_string(run_.state.step) + " of " + std::to_string(run_.steps) +
          (directory.empty() ? "; no checkpoint directory is set, so nothing was saved"
                             : "; saved in " + directory + ", resume to go on from there"));
}

Status TrainingRun::start() {
  run_.world.set_section("start");
  run_.setup.task.module->train();
  RunState& state = run_.state;
  state.accepted_changes = run_.setup.accepted_changes;
  const bool describes = run_.world.rank() == 0 && !run_.options.checkpoint.directory.empty();
  if (describes && !run_.has_columns()) state.training_data = describe_samples(*run_.setup.train);
  STORMO_RETURN_IF_ERROR(make_parameters());
  if (run_.options.steps == 0) {
    run_.steps = state.step + run_.sampler.steps_until(state.samples, run_.options.epochs);
  }
  STORMO_RETURN_IF_ERROR(prepare());
  STORMO_RETURN_IF_ERROR(make_runner());
  STORMO_RETURN_IF_ERROR(record_run());
  return begin_progress();
}

Status TrainingRun::make_parameters() {
  STORMO_RETURN_IF_ERROR(model_.make_parameters());
  run_.first_sample = run_.state.samples;
  return {};
}

Status TrainingRun::make_runner() {
  return model_.make_runner(
      {.load = [this] { return load(); },
       .task = model_.task_of_steps(),
       .store = model_.store(),
       .lanes = run_.lanes,
       .agree = [this](const StepOutcome& o) { return agree(o); },
       .commit = [this] { return commit(); },
       .global_samples =
           [this] {
             const std::int64_t begin = run_.state.samples;
             return run_.sampler.next(begin) - begin;
           },
       .begin_shard = [this](int shard) { seed_step(run_.options.seed, run_.state.step, shard); }});
}

void TrainingRun::begin_training() {
  started_training_ = true;
  progress_.log().resume();
}

Status TrainingRun::evaluate() {
  const std::shared_ptr<void> shown = model_.gather();
  return evaluation_.evaluate_all(/*at_end=*/false);
}

// Saves first: whatever goes wrong later, the training is not lost.
Status TrainingRun::finish() {
  observe::EndRecord& end = run_.end;
  run_.world.set_section("finish");
  std::shared_ptr<void> shown = model_.gather();
  STORMO_ASSIGN_OR_RETURN(end.weights_hash, model_.check_weights());
  STORMO_RETURN_IF_ERROR(save_last().within("the last checkpoint"));
  end.interrupted = run_.signal != 0;
  end.stopped_early = evaluation_.is_enough() && !end.converged && run_.state.step < run_.steps;
  if (!end.interrupted) STORMO_RETURN_IF_ERROR(evaluate_at_end(shown));
  STORMO_RETURN_IF_ERROR(note_end());
  progress_.note_end(end);
  if (!model_.was_made_in_parts()) model_.store().keep_values();
  STORMO_RETURN_IF_ERROR(record_run());
  end.ranks = ranks_of_workers(run_.options, run_.world.size());
  end.hosts = run_.hosts();
  run_.observer().on_end(end);
  const ServedWorker* const served = model_.store().served();
  return served == nullptr ? Status()
                           : served->record_status().within(
                                 "--record: the run is done, but its record is not whole");
}

Status TrainingRun::evaluate_at_end(std::shared_ptr<void>& shown) {
  STORMO_RETURN_IF_ERROR(evaluation_.evaluate_all(/*at_end=*/true));
  progress_.warn_at_chance();
  if (!run_.setup.task.sample) return {};
  const bool in_parts = model_.parts() != nullptr;
  if (in_parts) shown = model_.whole();  // on all ranks
  const bool is_whole = !in_parts || shown != nullptr;
  if (!is_whole) run_.end.no_sample = kTooLarge;
  if (is_whole && run_.world.rank() == 0) run_.end.sample = run_.setup.task.sample();
  return {};
}

// At the start, so that a run that fails can be replayed too, and at the end with its outcome.
Status TrainingRun::record_run() {
  const TrainerOptions& options = run_.options;
  if (options.record.empty() || run_.world.rank() != 0 || !run_.leads) return {};
  return write_run_record(options.record, {.workers = workers_of(options, run_.world.size()),
                                           .threads = at::get_num_threads(),
                                           .steps = run_.steps,
                                           .recipe_json = options.recipe_json,
                                           .origin = fnv1a(options.recipe_json),
                                           .weights_hash = run_.end.weights_hash})
      .within("--record");
}

}  // namespace stormo::train
