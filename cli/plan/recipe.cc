// The training step of a recipe, for `stormo plan`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <cli/plan/load.h>
#include <cli/plan/recipe.h>
#include <cli/train/report.h>
#include <stormo/codec/speed.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/other_load.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/prepare/column_data.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/step/strategy.h>

namespace stormo::cli {
Result<LoadedRecipe> load_recipe(const PlanOptions& o, int ranks, bool any_strategy) {
  std::vector<std::string> overrides = o.overrides;
  if (any_strategy) overrides.emplace_back("strategy.kind=auto");
  const train::ParsedRecipe parsed = train::load_recipe(o.plan, overrides);
  warn(parsed.left_out);
  std::vector<std::string> errors = parsed.errors;
  if (parsed.readable) {
    train::ParsedRecipe checked = parsed;
    if (any_strategy) {
      checked.recipe.train.strategy = {.kind = train::Strategy::Kind::kAuto};
      if (!checked.recipe.data.parts.empty()) {
        checked.recipe.data.parts.clear();
        errors.push_back(checked.at("data.parts") +
                         "a search compares ways in which ranks have whole samples; give one "
                         "table (data.parts= data.path=DIR)");
      }
    }
    const int computing = std::max(1, train::ranks_of_workers(checked.recipe.train, ranks));
    const std::vector<std::string> wrong = train::check_recipe(checked, computing);
    errors.insert(errors.end(), wrong.begin(), wrong.end());
  }
  if (!errors.empty()) return invalid_argument(fmt::format("{}", fmt::join(errors, "\n")));
  LoadedRecipe out{.recipe = parsed.recipe};
  if (train::reads_columns(out.recipe, ranks)) {
    out.data = train::described_columns(out.recipe);
  } else {
    STORMO_ASSIGN_OR_RETURN(out.data, train::load_data(out.recipe));
  }
  STORMO_ASSIGN_OR_RETURN(out.task, train::make_task(out.recipe, out.data.preprocessing,
                                                     train::InitialValues::kWithout));
  return out;
}

Result<train::RanksOfHost> measured_host(const train::Recipe& recipe,
                                         const std::vector<int>& ranks_per_host) {
  const launch::Cpus cpus = launch::read_cpus();
  const int ranks = *std::ranges::max_element(ranks_per_host);
  STORMO_ASSIGN_OR_RETURN(int threads, launch::threads_per_rank(launch::process_environment()));
  if (recipe.threads > 0) threads = static_cast<int>(recipe.threads);
  if (threads == 0) threads = launch::threads_per_rank(cpus, ranks);
  return train::RanksOfHost{.ranks = std::min(ranks, cpus.usable_cores()), .threads = threads};
}

Result<std::vector<train::StepMeasurement>> measure_here(const train::RanksOfHost& host,
                                                         const train::Task& task,
                                                         const data::Dataset& dataset,
                                                         const std::vector<train::Wanted>& wanted) {
  // the rest is for activations, and for what libraries take
  const std::uint64_t half = launch::available_memory() / 2;
  const launch::OtherLoad load;
  STORMO_ASSIGN_OR_RETURN(
      std::vector<train::StepMeasurement> out,
      train::measure_together(host, task, dataset, wanted,
                              static_cast<std::int64_t>(std::min<std::uint64_t>(half, INT64_MAX))));
  constexpr double kBusy = 0.25;
  if (const double cores = load.cores(); cores > kBusy) {
    fmt::print(stderr,
               "stormo: this machine was busy: other processes used {:.1f} of {} core(s) while "
               "times were measured; {}\n",
               cores, launch::read_cpus().usable_cores(),
               host.threads == 1 ? "they are those of a quiet machine"
                                 : "the shortest count, but may be too long");
  }
  return out;
}

Result<StepInput> load_recipe_step(const PlanOptions& o, const std::vector<int>& ranks_per_host) {
  const int ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  STORMO_ASSIGN_OR_RETURN(const LoadedRecipe loaded, load_recipe(o, ranks));
  if (loaded.recipe.open.any()) {
    return invalid_argument(
        "ranks choose what is \"auto\" when they start, by their links and times; write a "
        "value, or see what all of them would take: stormo plan simulate RECIPE");
  }
  return step_of(o, loaded, ranks_per_host);
}

Result<StepInput> step_of(const PlanOptions& o, const LoadedRecipe& loaded,
                          const std::vector<int>& ranks_per_host) {
  const int ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  const auto& [recipe, data, task] = loaded;
  const std::vector<int> computing = train::workers_per_host(recipe.train, ranks_per_host);
  if (computing.empty()) {
    return invalid_argument(fmt::format(
        "all {} ranks are servers (strategy.server_processes); start more ranks", ranks));
  }
  STORMO_ASSIGN_OR_RETURN(StepInput step, planned_step(recipe.train, task, computing, o.samples));
  if (!data.train) {
    if (!o.measured) return step;
    return invalid_argument(
        "--measured needs samples, and with vertical sharding only ranks read theirs; leave it "
        "out");
  }
  measure_moves(step, task, *data.train);
  if (!o.measured) return step;
  step.memory.process = static_cast<std::int64_t>(launch::own_memory());
  STORMO_ASSIGN_OR_RETURN(const train::RanksOfHost host, measured_host(recipe, computing));
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<train::StepMeasurement> measured,
      measure_here(host, task, *data.train,
                   {{recipe.train, step.samples, has_backward_parts(step.plan)}}));
  train::take_measured(step, measured[0]);
  step.codec = measure_speed(recipe.train.gradients.codec);
  return step;
}

}  // namespace stormo::cli
