// The words of `stormo strads`.

#include <memory>

#include <cli/commands.h>
#include <cli/recipe_file.h>
#include <cli/strads/program.h>
#include <cli/strads/train.h>

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
  add_lasso(*strads, invocation);
  add_factorise(*strads, invocation);
  add_strads_train_arguments(
      *strads->add_subcommand("train", "Train a net by blocks of its parameters"), invocation,
      run_strads_train);
}

}  // namespace stormo::cli
