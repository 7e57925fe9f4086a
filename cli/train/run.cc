// `stormo train` with libtorch: one rank, a run of one process, or nothing but a check.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/place.h>
#include <cli/plan/step.h>
#include <cli/train/arguments.h>
#include <cli/train/check.h>
#include <cli/train/rank.h>
#include <cli/train/report.h>
#include <cli/train/role.h>
#include <stormo/observe/data_text.h>
#include <stormo/observe/sharding_table.h>
#include <stormo/plan/project.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/strategy.h>

namespace stormo::cli {
namespace {

/// Which classes each rank gets in the first epoch, unless that is left to chance.
std::optional<observe::ShardingRecord> sharding_of(const train::Recipe& recipe,
                                                   const SoundRun& run) {
  if (!run.data->train) return std::nullopt;  // ranks alone read it, and all have the same samples
  const int parts = data_part(run.step.plan.mesh, 0).parts;
  data::Sampler sampler = train::make_sampler(*run.data->train, recipe.train, 0, parts);
  return train::sharding_record(recipe.train, sampler, 0);
}

/// "4 ranks", "3 workers, beside 1 server process".
std::string who_runs(const train::Recipe& recipe, const SoundRun& run) {
  const auto many = [](int n, const char* what, const char* plural) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : plural);
  };
  const int servers = recipe.train.servers.processes;
  const std::int64_t of_worker = ranks_of_worker(recipe.train.strategy);
  if (servers == 0 && of_worker == 1) return many(run.ranks, "rank", "s");
  std::string out = many(train::workers_of(recipe.train, run.ranks), "worker", "s");
  if (of_worker > 1) out += fmt::format(" of {} ranks each", of_worker);
  if (servers == 0) return out;
  return out + ", beside " + many(servers, "server process", "es");
}

int dry_run(SoundRun run, const TrainArguments& a) {
  const train::Recipe& recipe = run.parsed.recipe;
  const train::RecipeData& data = *run.data;
  const bool json = a.json;
  if (data.train) measure_moves(run.step, run.task, *data.train);
  const PlanOptions o{.plan = recipe.train.name,
                      .hosts = static_cast<int>(run.step.ranks_per_host.size()),
                      .selection = a.launch.selection};
  const std::string plan = plan::to_text(run.step.plan);
  const std::optional<observe::ShardingRecord> sharding = sharding_of(recipe, run);
  for (const auto* lines : {&std::as_const(run.parsed.left_out), &data.warnings, &data.hints}) {
    warn(*lines);
  }
  if (recipe.open.any()) {
    warn(
        {"ranks choose what is \"auto\" when they start; this plan is without compression, or with "
         "the longest period; 'stormo plan simulate RECIPE' says what all values would take"});
  }
  if (json) {
    const Result<std::string> predicted = step_figures(o, run.step);
    if (!predicted.ok()) return fail_usage({predicted.status().message()}, json);
    nlohmann::ordered_json line = {
        {"event", "dry_run"}, {"schema", 1},
        {"ranks", run.ranks}, {"recipe", nlohmann::ordered_json::parse(train::to_json(recipe))},
        {"plan", plan},       {"predicted", nlohmann::ordered_json::parse(*predicted)}};
    line["data"] = nlohmann::ordered_json::parse(observe::data_json(data.records));
    if (sharding) {
      line["sharding"] = nlohmann::ordered_json::parse(observe::sharding_json(*sharding));
    }
    fmt::print("{}\n", line.dump());
    return kExitOk;
  }
  fmt::print("# recipe, resolved\n{}\n# step plan of {}\n{}\n", train::to_toml(recipe),
             who_runs(recipe, run), plan);
  if (data.train) {
    fmt::print("# data\n{}{}\n", observe::data_text(data.records),
               sharding ? observe::sharding_table(*sharding) : "");
  }
  fmt::print("# predicted, for each step\n");
  Status status = step_cost(o, run.step);
  if (status.ok() && computes_known(run.step)) {
    fmt::print("\n");
    status = simulate_step(o, run.step);
  }
  if (!status.ok()) return fail_usage({status.message()}, json);
  fmt::print(
      "\n'stormo plan simulate RECIPE -n {} --hosts {} --measured' takes the times of this "
      "machine\n",
      run.ranks, o.hosts);
  return kExitOk;
}

/// In a process that a launcher has started: the first one prints what the job would do.
int dry_run_of_job(TrainArguments a, const transport::Rendezvous& place) {
  if (place.rank != 0) return kExitOk;
  if (!a.launch.ranks && a.launch.hosts.empty()) a.launch.ranks = place.size;
  if (place.cross_size > 1 && a.launch.hosts.empty()) {
    std::vector<std::string> hosts;
    for (int h = 0; h < place.cross_size; ++h)
      hosts.push_back(fmt::format("host{}:{}", h, place.local_size));
    a.launch.hosts = fmt::format("{}", fmt::join(hosts, ","));
  }
  std::optional<SoundRun> sound = check_run(recipe_of(a), a);
  return sound ? dry_run(std::move(*sound), a) : kExitUsage;
}

/// As the process of a cluster that TF_CONFIG describes.
int run_task(TrainRun run, const launch::ClusterTask& task) {
  const TrainArguments& a = run.words;
  const auto servers = static_cast<int>(task.servers.size());
  train::TrainerOptions& options = run.parsed.recipe.train;
  int& processes = options.servers.processes;
  if (!has_servers(options.strategy.kind)) {
    return fail_usage({"TF_CONFIG is set, but strategy.kind is neither parameter_server nor "
                       "elastic_averaging; write strategy.kind=parameter_server, or unset "
                       "TF_CONFIG"},
                      a.json);
  }
  if (processes != 0 && processes != servers) {
    return fail_usage({fmt::format("strategy.server_processes={}, but cluster.ps of TF_CONFIG has "
                                   "{}; leave it out",
                                   processes, servers)},
                      a.json);
  }
  if (ranks_of_worker(options.strategy) > 1) {
    return fail_usage({"TF_CONFIG describes one process for each worker: leave out "
                       "strategy.worker_ranks, strategy.pipeline and strategy.tensor, or start all "
                       "ranks by 'stormo train -n'"},
                      a.json);
  }
  if (a.launch.ranks || !a.launch.hosts.empty()) {
    return fail_usage({"TF_CONFIG says which process of a cluster this is: leave out -n and -H, or "
                       "unset TF_CONFIG to start ranks here"},
                      a.json);
  }
  processes = servers;
  return run_configured_role(std::move(run), task);
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
      own_engine ? place_in_job(a.launch) : find_place(a.engine, a.launch);
  if (!place.ok()) return fail_usage({place.status().message()}, a.json);
  if (a.dry_run && place->source != "none") return dry_run_of_job(a, *place);
  TrainRun train_run{.words = a, .parsed = parsed};
  if (place->source != "none") {
    train_run.rank = place->rank;
    train_run.launched = place->source == "stormo";
    train_run.checks_memory = std::getenv(kCheckMemoryVariable) != nullptr;
    if (parsed.recipe.train.servers.processes > 0) return run_launched_role(std::move(train_run));
    return run_rank(train_run);
  }
  const auto task = launch::task_of_environment(launch::process_environment());
  if (task && !a.dry_run && !(task->ok() && (*task)->servers.empty())) {
    if (!task->ok()) return fail_usage({task->status().message()}, a.json);
    return run_task(std::move(train_run), **task);
  }
  std::optional<SoundRun> sound = check_run(parsed, a);
  if (!sound) return kExitUsage;
  if (a.dry_run) return dry_run(std::move(*sound), a);
  if (sound->ranks != 1 || !a.launch.hosts.empty()) {
    return fail_usage({"'stormo train' starts ranks; this part of it is one"}, a.json);
  }
  train_run.is_checked = true;
  train_run.parsed = std::move(sound->parsed);
  train_run.data = std::move(sound->data);
  train_run.checks_memory = true;
  return run_rank(train_run);
}

}  // namespace stormo::cli
