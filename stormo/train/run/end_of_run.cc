// What follows the last step of a run: checks, the last checkpoint, evaluation, and the report.
#include <chrono>
#include <cstdint>
#include <memory>

#include <ATen/Parallel.h>

#include <stormo/base/rng.h>
#include <stormo/plan/project.h>
#include <stormo/train/agreement/replica_check.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/run/training_run.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

/// What a model that was made in parts may take as a whole, for its sample.
constexpr std::int64_t kMostWholeBytes = 256 << 20;
constexpr const char* kTooLarge =
    "none: no rank has the whole model, which takes more than 256 MiB; 'stormo sample' makes one "
    "from a checkpoint";

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

// That they are equal on all ranks. Returns their hash.
Result<std::string> TrainingRun::check_weights() {
  STORMO_RETURN_IF_ERROR(state_.share_buffers());
  return check_replicas(world_,
                        parts_ ? parts_->tensors() : visit_all(named_state(*setup_.task.module)));
}

// No rank need have memory for all of a model that was made in parts.
std::shared_ptr<void> TrainingRun::whole_model() {
  std::int64_t bytes = 0;
  for (const plan::ParameterShape* p : flatten(setup_.plan.model)) {
    bytes += p->elements * static_cast<std::int64_t>(size_of(p->dtype));
  }
  return made_in_parts_ && bytes > kMostWholeBytes ? nullptr : store_->readable();
}

// Saves first: whatever goes wrong later, the training is not lost.
Status TrainingRun::finish() {
  world_.set_section("finish");
  if (session_) {
    session_->session.pulse().get_on("finish");
    session_->session.pulse().finish();
  }
  std::shared_ptr<void> shown = readable();
  STORMO_ASSIGN_OR_RETURN(end_.weights_hash, check_weights());
  const Status saved =
      session_ ? at_position(session_->position, [this] { return save_last(); }) : save_last();
  STORMO_RETURN_IF_ERROR(saved.within("the last checkpoint"));
  end_.interrupted = signal_ != 0;
  end_.stopped_early = enough_ && !end_.converged && state_.step < steps_;
  if (!end_.interrupted) {
    STORMO_RETURN_IF_ERROR(evaluate_all(/*at_end=*/true));
    warn_at_chance();
    if (setup_.task.sample) {
      if (parts_) shown = whole_model();  // on all ranks
      const bool is_whole = !parts_ || shown != nullptr;
      if (!is_whole) end_.no_sample = kTooLarge;
      if (is_whole && world_.rank() == 0) end_.sample = setup_.task.sample();
    }
  }
  if (!session_) STORMO_RETURN_IF_ERROR(gather_bytes_sent());
  STORMO_RETURN_IF_ERROR(note_servers());
  if (averaging_) end_.averaging = averaging_->record();
  end_.steps = state_.step;
  end_.samples = state_.samples;
  end_.train_loss = recent_loss_.mean();
  end_.train_loss_steps = recent_loss_.steps();
  end_.wall_s = seconds_since(started_);
  const double trained_s = log_.total_seconds();
  const auto trained = static_cast<double>(state_.samples - first_sample_);
  end_.samples_per_s = trained_s > 0 ? trained / trained_s : 0;
  if (!made_in_parts_) store_->keep_values();
  STORMO_RETURN_IF_ERROR(record_run());
  end_.ranks = ranks_of_workers(options_, world_.size());
  end_.hosts = hosts();
  observer().on_end(end_);
  return store_->record_status().within("--record: the run is done, but its record is not whole");
}

// At the start, so that a run that fails can be replayed too, and at the end with its outcome.
Status TrainingRun::record_run() {
  if (options_.record.empty() || world_.rank() != 0 || !is_first()) return {};
  return write_run_record(options_.record, {.workers = workers_of(options_, world_.size()),
                                            .threads = at::get_num_threads(),
                                            .steps = steps_,
                                            .recipe_json = options_.recipe_json,
                                            .origin = fnv1a(options_.recipe_json),
                                            .weights_hash = end_.weights_hash})
      .within("--record");
}

Status TrainingRun::gather_bytes_sent() {
  auto mine = static_cast<std::int64_t>(groups_->bytes_sent());
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_.size()));
  STORMO_RETURN_IF_ERROR(world_.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, all));
  end_.bytes_sent_per_rank.assign(all.begin(), all.end());
  return {};
}

}  // namespace stormo::train
