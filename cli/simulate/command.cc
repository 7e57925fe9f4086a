// The words of `stormo simulate`.
#include <cli/commands.h>
#include <cli/recipe_file.h>
#include <cli/simulate/options.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo simulate recipes/mnist_mlp.toml data.path=data/mnist --workers 16\n"
    "  stormo simulate recipes/mnist_mlp.toml steps=500 --stragglers 2:10x --pooled\n"
    "  stormo simulate recipes/mnist_mlp.toml --policies ssp strategy.bound=10 --json\n"
    "  stormo simulate recipes/mnist_mlp.toml --policies sync,async --svg > loss.svg\n"
    "  stormo simulate recipes/mnist_ps.toml strategy.push_every=4 --policies async,downpour\n"
    "  stormo simulate recipes/mnist_ps.toml --times RECORD --policies async,ssp\n"
    "\n"
    "One process computes all gradients; only time is virtual. The recipe's strategy.policy is\n"
    "taken, or its strategy.kind if that averages; all policies if it is another one than\n"
    "parameter_server. Other keys of the strategy: strategy.bound, n, backups, warm_start,\n"
    "fetch_every, push_every, period, moving_rate, compensation, lambda, servers, placement.\n"
    "Exit codes: 0 done; 1 a failure; 2 usage or configuration. See docs/simulate.md.";

void add_cluster(CLI::App& command, SimulateArguments& a) {
  auto* workers =
      command.add_option("--workers", a.workers, "Number of workers, which share the global batch")
          ->capture_default_str();
  add_stragglers(command, a.time);
  const auto times = add_virtual_time(command, a.time, "Time that a worker computes in a step",
                                      "Time of a message, each way");
  auto* record =
      command
          .add_option("--times", a.times,
                      "Folder of a run that 'stormo train --record' recorded: its workers\nand the "
                      "times of their steps")
          ->excludes(workers);
  for (CLI::Option* option : times) record->excludes(option);
  command.add_flag("--pooled", a.pooled,
                   "All steps are in one pool, from which a free worker takes the\nnext; else "
                   "every worker has the same number");
  command
      .add_option("--crash", a.crashes,
                  "WORKER:TIME: this worker ends then, 3:250ms; may be repeated")
      ->allow_extra_args(false);
  command
      .add_option("--loss", a.loss,
                  "Probability that a message between a worker and a server is lost")
      ->capture_default_str();
  command
      .add_option("--timeout", a.timeout,
                  "With losses: a worker that has no answer for so long asks again")
      ->capture_default_str();
  command
      .add_option("--server-crash", a.server_crashes,
                  "SERVER:TIME: this server is lost then, 1:250ms, which ends the\nrun without "
                  "--server-backups; may be repeated")
      ->allow_extra_args(false);
  command.add_flag("--server-backups", a.server_backups,
                   "The next server has a copy of each one's shard, and takes over");
  command
      .add_option("--seed", a.seed,
                  "Of virtual time; weights and data have the recipe's train.seed")
      ->check([](const std::string& seed) {
        return std::string(seed.starts_with('-') ? seed + " is below 0" : "");
      })
      ->capture_default_str();
}

void add_flags(CLI::App& command, SimulateArguments& a) {
  take_recipe_names(command.add_option("recipe", a.recipe, "Recipe, a TOML file"))->required();
  command.add_option("overrides", a.overrides, "key=value: changes to the recipe");
  command
      .add_option("--policies", a.policies,
                  "Policies to compare, separated by commas: sync, async, ssp,\nn_softsync, "
                  "backup_workers, parameter_averaging, elastic_averaging,\ndownpour, or all")
      ->delimiter(',')
      ->allow_extra_args(false);
  add_cluster(command, a);
  CLI::Option* json = command.add_flag("--json", a.json, "One JSON object per policy on stdout");
  command.add_flag("--svg", a.svg, "A picture of the losses over virtual time, on stdout")
      ->excludes(json);
}

}  // namespace

void add_simulate_command(CLI::App& app, Invocation& invocation) {
  add_command(app, invocation, "simulate",
              "Train with parameter servers or averages in virtual time", kExamples, add_flags,
              run_simulate);
}

}  // namespace stormo::cli
