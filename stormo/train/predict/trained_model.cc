#include <stormo/train/predict/trained_model.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/checkpoint/reader.h>
#include <stormo/train/failure.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

/// Where data lie and how they are written: the model stays what it is.
constexpr std::string_view kFree[] = {
    "data.path",  "data.train", "data.validation", "data.test",     "data.header", "data.label",
    "data.parts", "data.id",    "data.extensions", "data.on_error", "threads"};

/// Who names other data asks about those, and the parts of the recipe need not be there any more.
void keep_named_parts(ParsedRecipe& parsed) {
  const auto named = [&parsed](std::string_view key) {
    const auto origin = parsed.origins.find(key);
    return origin != parsed.origins.end() && origin->second == "command line";
  };
  DataOptions& data = parsed.recipe.data;
  if (!named("data.validation") && !named("data.test")) return;
  if (!named("data.validation")) data.validation.clear();
  if (!named("data.test")) data.test.clear();
  data.validation_fraction = data.test_fraction = 0;
}

Status check_overrides(const ParsedRecipe& parsed) {
  std::vector<std::string> errors = parsed.errors;
  for (const auto& [key, origin] : parsed.origins) {
    if (origin != "command line" || std::ranges::find(kFree, key) != std::end(kFree)) continue;
    errors.push_back(fmt::format("{} belongs to what was trained; only {} can be changed", key,
                                 fmt::join(kFree, ", ")));
  }
  ParsedRecipe alone = parsed;
  // one process has the whole model, however it was cut
  const Strategy& trained = parsed.recipe.train.strategy;
  alone.recipe.train.strategy = {.kind = trained.kind,
                                 .exchange_periods = trained.exchange_periods};
  alone.recipe.train.gradients = {};
  alone.recipe.momentum_correction = false;
  alone.recipe.train.averaging.warmup_steps = 0;
  alone.recipe.freeze_step = 0;
  alone.recipe.train.servers.worker_timeout_s = ServerOptions().worker_timeout_s;
  leave_out_unused(alone.recipe);
  // nothing is saved
  alone.recipe.train.checkpoint = {};
  alone.recipe.train.patience = 0;
  if (errors.empty()) errors = check_recipe(alone, 1);
  if (errors.empty()) return {};
  return invalid_argument(fmt::format("{}", fmt::join(errors, "\n")));
}

/// What recipes of this kind of data cannot do without.
Status check_settled(const Recipe& recipe, const Preprocessing& p) {
  const std::string& kind = recipe.data.kind;
  const bool whole = kind == "text"                  ? p.vocabulary.has_value()
                     : kind == "text_classification" ? p.words && p.classes.size() > 0
                     : kind == "image_folder" ? !p.classes.names().empty() && p.input.size() == 3
                     : kind == "csv" || kind == "tsv"
                         ? !p.columns.empty() && p.input == std::vector{p.features()}
                         : !p.input.empty();
  if (whole) return {};
  return {Code::kCorrupt, "the preprocessing of the checkpoint does not fit its recipe"};
}

Result<TrainedModel> load(checkpoint::CheckpointReader& reader,
                          std::span<const std::string> overrides) {
  const checkpoint::Manifest& manifest = reader.manifest();
  if (manifest.recipe_json == "{}") {
    return invalid_argument(
        "holds weights without a recipe (a program of its own has written it, or `stormo "
        "checkpoint "
        "import`): only that program knows the model; give a checkpoint of `stormo train`");
  }
  if (manifest.preprocessing_json == "{}") {
    return invalid_argument(
        "holds no names of classes and no vocabulary, since an older Stormo has written it; "
        "`stormo train ... --resume` writes a new one");
  }
  ParsedRecipe parsed = restore_recipe(manifest.recipe_json, overrides);
  keep_named_parts(parsed);
  STORMO_RETURN_IF_ERROR(check_overrides(parsed));
  TrainedModel model{.checkpoint = reader.path(),
                     .step = manifest.step,
                     .recipe = parsed.recipe,
                     .preprocessing = {},
                     .task = {}};
  STORMO_ASSIGN_OR_RETURN(model.preprocessing, parse_preprocessing(manifest.preprocessing_json));
  STORMO_RETURN_IF_ERROR(check_settled(model.recipe, model.preprocessing));
  STORMO_ASSIGN_OR_RETURN(model.task, make_task(model.recipe, model.preprocessing));
  STORMO_RETURN_IF_ERROR(read_into(reader, named_state(*model.task.module)));
  model.task.module->eval();
  return model;
}

}  // namespace

Result<TrainedModel> load_trained_model(const std::string& path,
                                        std::span<const std::string> overrides) {
  STORMO_ASSIGN_OR_RETURN(checkpoint::CheckpointReader reader,
                          checkpoint::CheckpointReader::open(path));
  try {
    Result<TrainedModel> model = load(reader, overrides);
    return model.ok() ? std::move(model) : model.status().within(path);
  } catch (...) {  // libtorch's allocator throws
    return failure_of_current_exception().within(path);
  }
}

}  // namespace stormo::train
