#include <stormo/train/loop/run_evaluation.h>

#include <array>
#include <optional>
#include <span>
#include <utility>

#include <stormo/train/population/population_store.h>

namespace stormo::train {

// Who looks at the test part while a run goes on chooses by it: it is for the end only.
Status RunEvaluation::evaluate_all(bool at_end) {
  STORMO_RETURN_IF_ERROR(run_.state.share_buffers());
  const bool again = std::exchange(evaluated_step_, run_.state.step) == run_.state.step;
  std::optional<Evaluation> validation;
  Task task = run_.setup.task;
  if (beside_.alive) {
    task.forward = [this](const torch::Tensor& input) {
      beside_.alive();
      return run_.setup.task.forward(input);
    };
  }
  const bool columns = run_.has_columns();
  for (const EvalSplit& split : run_.setup.splits) {
    if (split.name == "test" ? !at_end : again) continue;
    const Interval interval(run_.lanes, Lane::kCompute, "evaluate");
    const Result<Evaluation> result =
        evaluate(run_.world, task, split,
                 {.columns = columns, .segments = columns ? nullptr : model_.parts()});
    if (!result.ok()) return result.status().within("evaluate '" + split.name + "'");
    if (split.name == "validation") run_.end.val_loss = result->loss;
    if (split.name == "test") run_.end.test_accuracy = result->accuracy;
    if (split.name == "validation") validation = *result;
    observe::EvalRecord record{.split = split.name,
                               .step = run_.state.step,
                               .loss = result->loss,
                               .accuracy = result->accuracy,
                               .mae = result->mae,
                               .r2 = result->r2,
                               .samples = result->samples};
    const PopulationStore* const population = model_.store().population();
    if (population != nullptr && split.name == "validation") {  // by which they were judged
      record.member_losses = population->losses();
      record.churn = population->churn();
    }
    run_.observer().on_eval(record);
  }
  const bool judged = validation && run_.options.checkpoint.best != "none";
  return judged ? judge(*validation) : Status();
}

// Rank 0 decides for all ranks whether that was the best so far, and whether it is worth going on.
Status RunEvaluation::judge(const Evaluation& validation) {
  std::array<std::int64_t, 2> verdict{};
  if (run_.world.rank() == 0) {
    BestScore& best = run_.state.best;
    verdict[0] = best.take(validation, run_.state.step) ? 1 : 0;
    verdict[1] = run_.options.patience > 0 && best.since() >= run_.options.patience ? 1 : 0;
    run_.end.best_metric = best.metric();
    run_.end.best_step = best.step();
    run_.end.best_value = best.value();
  }
  STORMO_RETURN_IF_ERROR(run_.world.broadcast(std::span<std::int64_t>(verdict), 0));
  enough_ = verdict[1] != 0;
  return verdict[0] != 0 ? save_best() : Status();
}

Status RunEvaluation::save_best() {
  if (run_.options.checkpoint.directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(saves_.note_last());
  const auto save = [this] { return saves_.save_best(); };
  return beside_.save ? beside_.save(save) : save();
}

}  // namespace stormo::train
