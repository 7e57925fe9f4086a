// Evaluations of a run in between and at its end, and what follows from them: which state is the
// best, and whether to stop.
#include <array>
#include <optional>
#include <span>
#include <utility>

#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/run/training_run.h>

namespace stormo::train {

// Who looks at the test part while a run goes on chooses by it: it is for the end only.
Status TrainingRun::evaluate_all(bool at_end) {
  STORMO_RETURN_IF_ERROR(state_.share_buffers());
  const bool again = std::exchange(evaluated_step_, state_.step) == state_.step;
  std::optional<Evaluation> validation;
  Task task = setup_.task;
  if (session_) {  // others may wait for this worker, and see that it gets on
    task.forward = [this](const torch::Tensor& input) {
      session_->session.pulse().get_on("evaluate");
      return setup_.task.forward(input);
    };
  }
  for (const EvalSplit& split : setup_.splits) {
    if (split.name == "test" ? !at_end : again) continue;
    const Interval interval(lanes_, Lane::kCompute, "evaluate");
    const Result<Evaluation> result = evaluate(
        world_, task, split,
        {.columns = has_columns(), .segments = has_columns() || !parts_ ? nullptr : &*parts_});
    if (!result.ok()) return result.status().within("evaluate '" + split.name + "'");
    if (split.name == "validation") end_.val_loss = result->loss;
    if (split.name == "test") end_.test_accuracy = result->accuracy;
    if (split.name == "validation") validation = *result;
    observer().on_eval({.split = split.name,
                        .step = state_.step,
                        .loss = result->loss,
                        .accuracy = result->accuracy,
                        .mae = result->mae,
                        .r2 = result->r2,
                        .samples = result->samples});
  }
  const bool judged = validation && options_.checkpoint.best != "none";
  return judged ? judge(*validation) : Status();
}

// Rank 0 decides for all ranks whether that was the best so far, and whether it is worth going on.
Status TrainingRun::judge(const Evaluation& validation) {
  std::array<std::int64_t, 2> verdict{};
  if (world_.rank() == 0) {
    BestScore& best = state_.best;
    verdict[0] = best.take(validation, state_.step) ? 1 : 0;
    verdict[1] = options_.patience > 0 && best.since() >= options_.patience ? 1 : 0;
    end_.best_metric = best.metric();
    end_.best_step = best.step();
    end_.best_value = best.value();
  }
  STORMO_RETURN_IF_ERROR(world_.broadcast(std::span<std::int64_t>(verdict), 0));
  enough_ = verdict[1] != 0;
  return verdict[0] != 0 ? save_best() : Status();
}

Status TrainingRun::save_best() {
  if (options_.checkpoint.directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(note_save(state_.finish_save()));
  const auto save = [this] {
    saving_step_ = state_.step;
    return note_save(state_.save_best());
  };
  return session_ ? at_position(session_->position, save) : save();
}

}  // namespace stormo::train
