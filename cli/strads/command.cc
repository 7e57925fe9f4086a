// The words of `stormo strads`.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>

#include <cli/number_check.h>
#include <cli/recipe_file.h>
#include <cli/strads/program.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo strads lasso -n 2                       made data, 2 ranks\n"
    "  stormo strads factorise -n 2\n"
    "  stormo strads train recipes/mnist_strads.toml -n 2\n"
    "\n"
    "Scheduled model parallelism: blocks of variables that do not interfere are updated at the\n"
    "same time. See docs/strads.md.";

constexpr const char* kTrainExamples =
    "  stormo strads train recipes/mnist_strads.toml -n 2 data.path=data/mnist\n"
    "  stormo strads train recipes/mnist_strads.toml -n 2 --resume\n"
    "  stormo strads train recipes/mnist_strads.toml --no-check --round 100000   plain SGD\n"
    "\n"
    "A round updates some blocks of a net's parameters by plain SGD, with a batch of all ranks. "
    "Of\n"
    "the recipe it takes model, data, loss, seed, batch, steps, optimizer.lr and checkpoint.*;\n"
    "other keys are refused. 'stormo evaluate' and 'predict' take its checkpoints. Exit codes: 0\n"
    "done; 1 a failure, or the updates diverged; 2 usage or configuration; 75 a peer was lost, "
    "and\n"
    "there is a checkpoint to --resume from. See docs/strads.md.";

/// Of gradients: units of a layer are never as independent as columns of data.
constexpr double kNetThreshold = 0.5;

}  // namespace

Need from(std::int64_t least, std::int64_t most) {
  return [least, most](double v) {
    const bool holds = v >= static_cast<double>(least) && v <= static_cast<double>(most);
    return holds ? "" : fmt::format("is not from {} to {}", least, most);
  };
}

std::string text_of(double value) { return fmt::format("{}", value); }

Need above_zero() {
  return [](double v) { return v > 0 && std::isfinite(v) ? "" : "is not a number greater than 0"; };
}

void add_common(CLI::App& command, StradsArguments& a, const char* seeded) {
  a.add(command, "--seed", a.schedule.seed, seeded)->check(at_least(0));
  command.add_flag("--json", a.json, "One JSON object per judgement on stdout, and one at the end");
  command.add_flag("--dry-run", a.dry_run, "Print the plan of a round, start nothing");
  auto* simulated =
      a.add(command, "--virtual", a.virtual_workers,
            "Number of workers in virtual time, in one process", from(1, kMostVirtualWorkers));
  for (CLI::Option* option :
       add_virtual_time(command, a.time, "Virtual time of a worker for its part of a block",
                        "Virtual time of a message, each way")) {
    option->needs(simulated);
  }
  add_stragglers(command, a.time)->needs(simulated);
  add_launch_flags(command, a.launch);
}

void add_schedule(CLI::App& command, StradsArguments& a, const char* block, const char* in_turn,
                  const char* every) {
  const auto of_block = [block](const char* text) {
    return fmt::format(fmt::runtime(text), block);
  };
  auto* cyclic = a.add(command, "--cyclic", a.cyclic, fmt::format("No draws: {}", in_turn));
  a.add(command, "--round", a.schedule.round, of_block("Most {}s in a round"),
        from(1, kMostNumber));
  auto* threshold =
      a.add(command, "--threshold", a.threshold,
            of_block("Two {}s whose cosine is at or above this are not updated\nat the same time"),
            [](double v) { return v > 0 && v <= 1 ? "" : "is not above 0 and at most 1"; });
  a.add(command, "--depth", a.schedule.depth, "Rounds that may be in flight besides the oldest one",
        from(0, 1024));
  auto* base_weight =
      a.add(command, "--base-weight", a.schedule.base_weight,
            of_block("A {} is drawn by its last change plus this"), [](double v) {
              constexpr double kMost = protocol::kMostBlockWeight;
              return v > kMost ? fmt::format("is above {}", kMost) : above_zero()(v);
            });
  a.add(command, "--no-priority", a.no_priority, of_block("Draw all {}s with equal weights"))
      ->excludes(cyclic)
      ->excludes(base_weight->excludes(cyclic));
  a.add(command, "--no-check", a.no_check, "Do not look for conflicts")
      ->excludes(cyclic)
      ->excludes(threshold->excludes(cyclic));
  a.add(command, "--every", a.every, fmt::format("Rounds between judgements; default: {}", every),
        from(1, std::numeric_limits<std::int64_t>::max()));
}

void add_strads_train_arguments(CLI::App& command, Invocation& invocation,
                                int (*run)(const StradsTrainArguments& a)) {
  command.footer(kTrainExamples);
  const auto a = std::make_shared<StradsTrainArguments>();
  a->threshold = kNetThreshold;
  take_recipe_names(
      command.add_option("recipe", a->train.recipe, "Recipe, a TOML file, as of 'stormo train'"))
      ->required();
  command.add_option("overrides", a->train.overrides, "key=value: changes to the recipe");
  a->add(command, "--rounds", a->rounds, "Rounds of the whole run; default: the recipe's steps",
         from(1, kMostNumber));
  a->add(command, "--units", a->units,
         "Of a layer in a block: slices of a parameter along its first\ndimension",
         from(1, kMostNumber));
  add_schedule(command, *a, "block", "all blocks in turn, --round of them",
               "those of a pass over the\ndata");
  command.add_option("--checkpoint", a->train.checkpoint, "Folder of the checkpoints");
  command.add_flag("--resume", a->train.resume, "Go on from the newest checkpoint");
  command.add_flag("--overwrite", a->train.overwrite,
                   "Begin anew in a folder that has checkpoints");
  add_common(command, *a, "Of draws of blocks");
  command.callback([a, run, &invocation] { invocation.exit_code = run(*a); });
}

void add_strads_command(CLI::App& app, Invocation& invocation) {
  CLI::App* strads =
      app.add_subcommand("strads", "Update blocks of a model's variables by a schedule");
  strads->footer(kExamples);
  strads->require_subcommand(1);
  add_numbers_programs(*strads, invocation);
  add_strads_train_arguments(
      *strads->add_subcommand("train", "Train a net by blocks of its parameters"), invocation,
      run_strads_train);
}

}  // namespace stormo::cli
