// `stormo evaluate`: loss and accuracy of a trained model on data that training has not seen.
#include <fmt/format.h>

#include <iostream>
#include <string>
#include <vector>

#include <cli/trained/arguments.h>
#include <cli/trained/evaluate.h>
#include <cli/trained/model.h>
#include <stormo/base/printable.h>
#include <stormo/observe/json_lines.h>
#include <stormo/observe/progress.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/run/evaluate.h>

namespace stormo::cli {

Status evaluate_model(const train::TrainedModel& model, bool as_json) {
  STORMO_ASSIGN_OR_RETURN(const train::RecipeData data,
                          train::load_held_out(model.recipe, model.preprocessing));
  if (data.splits.empty()) {
    return invalid_argument(
        "the recipe names no data but those of the training; name others: data.test=FILE");
  }
  for (const std::string& warning : data.warnings) {
    std::cerr << "warning: " << printable(warning) << "\n";
  }
  observe::JsonObserver json(std::cout);
  observe::TextObserver text(std::cout, {});
  observe::RunObserver& observer = as_json ? static_cast<observe::RunObserver&>(json) : text;
  STORMO_ASSIGN_OR_RETURN(const auto alone, comm::make_inproc_group(1));
  for (const train::EvalSplit& split : data.splits) {
    STORMO_ASSIGN_OR_RETURN(const train::Evaluation result,
                            train::evaluate(*alone.front(), model.task, split));
    observer.on_eval({.split = split.name,
                      .step = model.step,
                      .loss = result.loss,
                      .accuracy = result.accuracy,
                      .mae = result.mae,
                      .r2 = result.r2,
                      .samples = result.samples});
  }
  return {};
}

int evaluate(const ModelChoice& choice) {
  return with_trained_model("evaluate", choice, [&](const train::TrainedModel& model) {
    return evaluate_model(model, choice.json);
  });
}

}  // namespace stormo::cli
