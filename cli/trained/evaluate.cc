// `stormo evaluate`: loss and accuracy of a trained model on data that training has not seen.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <string>

#include <cli/train/report.h>
#include <cli/trained/arguments.h>
#include <cli/trained/evaluate.h>
#include <cli/trained/model.h>
#include <stormo/observe/json_lines.h>
#include <stormo/observe/progress.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/predict/class_report.h>
#include <stormo/train/prepare/recipe_task.h>

namespace stormo::cli {
namespace {

/// A confusion matrix of more would be larger than what it says.
constexpr std::int64_t kMostClasses = 1000;

Result<observe::EvalRecord> evaluate_split(const train::TrainedModel& model,
                                           const train::EvalSplit& split,
                                           comm::Communicator& alone) {
  std::optional<train::ClassReport> report;
  const auto see = [&](const torch::Tensor& output, const torch::Tensor& target) {
    if (!model.task.correct || output.dim() != 2 || output.size(1) > kMostClasses) return;
    if (!report) report.emplace(output.size(1));
    report->add(output, target);
  };
  STORMO_ASSIGN_OR_RETURN(const train::Evaluation result,
                          train::evaluate(alone, model.task, split, {.see = see}));
  if (!std::isfinite(result.loss)) {
    return Status(Code::kCorrupt,
                  split.name +
                      ": the loss is no finite number; the inputs are far from those of "
                      "the training, or the model's weights are broken");
  }
  observe::EvalRecord record{.split = split.name,
                             .step = model.step,
                             .loss = result.loss,
                             .accuracy = result.accuracy,
                             .mae = result.mae,
                             .r2 = result.r2,
                             .samples = result.samples};
  if (report) {
    record.f1 = report->mean_f1();
    record.auc = report->auc();
    record.confusion = report->confusion();
    for (std::int64_t c = 0; c < std::ssize(record.confusion); ++c) {
      record.classes.push_back(model.preprocessing.classes.name(c));
    }
  }
  return record;
}

}  // namespace

Status evaluate_model(const train::TrainedModel& model, bool as_json, HeldOut parts) {
  STORMO_ASSIGN_OR_RETURN(const train::RecipeData data,
                          train::load_held_out(model.recipe, model.preprocessing));
  if (data.splits.empty()) {
    return invalid_argument(
        "the recipe names no data but those of the training; name others: data.test=FILE");
  }
  warn(data.warnings);
  warn(data.hints);
  observe::JsonObserver json(std::cout);
  observe::TextObserver text(std::cout, {});
  observe::RunObserver& observer = as_json ? static_cast<observe::RunObserver&>(json) : text;
  STORMO_ASSIGN_OR_RETURN(const auto alone, comm::make_inproc_group(1));
  const bool has_validation =
      std::ranges::count(data.splits, "validation", &train::EvalSplit::name) > 0;
  for (const train::EvalSplit& split : data.splits) {
    const HeldOut part =
        has_validation && split.name == "test" ? HeldOut::kAfterTraining : HeldOut::kDuringTraining;
    if (parts != HeldOut::kAll && parts != part) continue;
    STORMO_ASSIGN_OR_RETURN(const observe::EvalRecord record,
                            evaluate_split(model, split, *alone.front()));
    observer.on_eval(record);
  }
  return {};
}

int evaluate(const ModelChoice& choice) {
  return with_trained_model("evaluate", choice, [&](const train::TrainedModel& model) {
    return evaluate_model(model, choice.json);
  });
}

}  // namespace stormo::cli
