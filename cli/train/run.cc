// `stormo train` with libtorch: one rank, a run of one process, or nothing but a check.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/train/arguments.h>
#include <cli/train/check.h>
#include <cli/train/rank.h>
#include <stormo/parallel/strategy.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/step/strategy.h>

namespace stormo::cli {
namespace {

Result<plan::StepPlan> plan_for(const train::Recipe& recipe, const train::Preprocessing& data,
                                int ranks) {
  STORMO_ASSIGN_OR_RETURN(const train::Task task, train::make_task(recipe, data));
  STORMO_ASSIGN_OR_RETURN(const train::Strategy strategy, train::strategy_of(recipe.train));
  return parallel::plan_for(
      strategy, task.shape.value_or(plan::ModelShape{}),
      {.ranks_per_host = {ranks}, .can_share = true},
      train::step_options_of(recipe.train, task.autocast == torch::kHalf, /*hosts=*/1));
}

int dry_run(const train::Recipe& recipe, const train::Preprocessing& data, int ranks, bool json) {
  const Result<plan::StepPlan> plan = plan_for(recipe, data, ranks);
  if (!plan.ok()) return fail_usage({plan.status().message()}, json);
  if (json) {
    const nlohmann::ordered_json line = {
        {"event", "dry_run"},
        {"schema", 1},
        {"ranks", ranks},
        {"recipe", nlohmann::ordered_json::parse(train::to_json(recipe))},
        {"plan", plan::to_text(*plan)}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("# recipe, resolved\n{}\n# step plan of {} rank{}\n{}\n", train::to_toml(recipe),
               ranks, ranks == 1 ? "" : "s", plan::to_text(*plan));
  }
  return kExitOk;
}

}  // namespace

int run_train(const TrainArguments& a) {
  if (a.help_recipe) {
    fmt::print("{}", train::recipe_reference());
    return kExitOk;
  }
  const train::ParsedRecipe parsed = recipe_of(a);
  const bool own_engine = a.engine == "stormo";
  const Result<transport::Rendezvous> place =
      own_engine ? place_in_job() : find_place(a.engine, a.launch);
  if (!own_engine && !place.ok()) return fail_usage({place.status().message()}, a.json);
  TrainRun train_run{.recipe = parsed.recipe, .engine = a.engine, .json = a.json, .trace = a.trace};
  if (!place.ok() || place->source != "none") {
    export_stall_flags(a.launch);
    train_run.rank = place.ok() ? place->rank : 0;
    train_run.launched = place.ok() && place->source == "stormo";
    train_run.find_problems = [&, launched = train_run.launched](Rank rank, int ranks) {
      return problems_of_rank(parsed, a, ranks, !launched && rank == 0);
    };
    return run_rank(train_run);  // its init() says what is wrong with the environment
  }
  std::optional<SoundRun> sound = check_run(parsed, a);
  if (!sound) return kExitUsage;
  if (a.dry_run) return dry_run(parsed.recipe, sound->data.preprocessing, sound->ranks, a.json);
  if (sound->ranks != 1 || !a.launch.hosts.empty()) {
    return fail_usage({"'stormo train' starts ranks; this part of it is one"}, a.json);
  }
  train_run.data = std::move(sound->data);
  return run_rank(train_run);
}

}  // namespace stormo::cli
