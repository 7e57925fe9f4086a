// `stormo evaluate`: loss and accuracy of a trained model on data that training has not seen.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <cli/commands.h>
#include <cli/trained/model.h>
#include <stormo/base/printable.h>
#include <stormo/observe/json_lines.h>
#include <stormo/observe/progress.h>
#include <stormo/train/evaluate.h>
#include <stormo/train/recipe_task.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo evaluate runs/mnist                            on the data of its recipe\n"
    "  stormo evaluate runs/mnist/step-00000938 data.path=DIR\n"
    "  stormo evaluate runs/flowers --best data.test=other.csv --json\n"
    "\n"
    "Preprocessing, names of classes and vocabulary come with the checkpoint; key=value says "
    "where\n"
    "other data lie (data.path, data.validation, data.test) and how they are written. Exit codes:\n"
    "0 done; 1 the checkpoint is damaged; 2 usage, or the data do not fit the model.";

Status evaluate(const ModelChoice& choice, const train::TrainedModel& model) {
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
  observe::RunObserver& observer = choice.json ? static_cast<observe::RunObserver&>(json) : text;
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

}  // namespace

void add_evaluate_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("evaluate", "Judge a trained model on held-out data");
  command->footer(kExamples);
  const auto choice = std::make_shared<ModelChoice>();
  add_model_choice(*command, *choice);
  command->add_option("overrides", choice->overrides, "key=value: where other data lie");
  command->callback([choice, &invocation] {
    const auto use = [&](const train::TrainedModel& model) { return evaluate(*choice, model); };
    invocation.exit_code = with_trained_model("evaluate", *choice, use);
  });
}

}  // namespace stormo::cli
