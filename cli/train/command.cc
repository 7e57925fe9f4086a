// The words of `stormo train`, and what they mean for who launches ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/recipe_file.h>
#include <cli/train/arguments.h>
#include <cli/train/report.h>
#include <stormo/base/text.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo train recipes/quickstart.toml -n 2\n"
    "  stormo train mnist -n 2 data.path=data/digits        of Stormo's recipes, by its name\n"
    "  stormo train recipes/mnist.toml -n 2 data.path=data/mnist optimizer.lr=0.05\n"
    "  stormo train recipes/mnist.toml --dry-run            print recipe and plan, start nothing\n"
    "  stormo train recipes/mnist.toml -H a:2,b:2 --resume  go on from the newest checkpoint\n"
    "  mpirun -n 4 stormo train recipes/mnist.toml          --engine mpi: MPI moves the bytes too\n"
    "\n"
    "key=value changes a value of the recipe; --help-recipe lists all keys. Exit codes: 0 done;\n"
    "1 the run failed; 2 usage or configuration, no step was taken; 75 a peer was lost, and there\n"
    "is a checkpoint to --resume from; 130, 143 interrupted, with a checkpoint.";

/// Beside what a run prints.
void add_outlets(CLI::App& command, TrainArguments& a) {
  command.add_option("--trace", a.trace, "Write a Chrome/Perfetto trace file");
  command.add_option("--log-csv", a.log_csv,
                     "Write steps and evaluations as a table; --resume appends");
  command.add_option("--metrics", a.metrics,
                     "ADDRESS:PORT at which rank 0 shows the run over HTTP: /metrics\nfor "
                     "Prometheus, /json, /healthz; e.g. 127.0.0.1:9464");
  command.add_option("--metrics-token", a.metrics_token,
                     "File with the token that its readers must have; needed for an\naddress "
                     "that other machines can reach");
  command.add_option("--otlp", a.otlp,
                     "Collector of OpenTelemetry to which rank 0 sends metrics and\nevents "
                     "(OTLP/HTTP, JSON); e.g. http://127.0.0.1:4318");
  command.add_flag("--cost", a.cost,
                   "Say at the end what the run has used: hours, energy where it\ncan be measured, "
                   "and what faults have cost");
  command.add_option("--price", a.price, "Price of a host hour: as --cost, with what it comes to")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--tensorboard", a.tensorboard,
                     "Folder into which to write an event file for TensorBoard");
  command
      .add_option("--record", a.record,
                  "Folder for the order of reads and pushes of a run with\nparameter servers, "
                  "see `stormo replay`")
      ->check([](const std::string& folder) {
        return std::string(folder.empty() ? "it needs the name of a folder" : "");
      });
}

/// The address, which may be empty, has no blanks.
std::string elastic_text(const launch::Elastic& elastic) {
  return fmt::format("{} {} {} {} {} {}", elastic.replaces ? 1 : 0, elastic.longest_stop.count(),
                     elastic.min_ranks, elastic.max_ranks, elastic.adds_places ? 1 : 0,
                     elastic.register_address);
}

}  // namespace

void add_train_arguments(CLI::App& train, Invocation& invocation,
                         int (*run)(const TrainArguments& a)) {
  CLI::App* command = &train;
  const auto a = std::make_shared<TrainArguments>();
  command->footer(kExamples);
  CLI::Option* recipe = take_recipe_names(command->add_option(
      "recipe", a->recipe, "Recipe: a TOML file, or the name of one of Stormo's"));
  command->add_option("overrides", a->overrides, "key=value: changes to the recipe");
  command->add_flag("--resume", a->resume, "Continue from the newest checkpoint");
  command->add_flag(
      "--auto-resume", a->auto_resume,
      "As --resume if there is a checkpoint, else begin: for a\nscheduler that starts "
      "the same command again");
  command
      ->add_option("--accept-changes", a->accept_changes,
                   "With --resume: keys or sections that may differ from the\ncheckpoint's, "
                   "e.g. train.seed,optimizer; data: other samples")
      ->delimiter(',');
  command->add_option("--init-from", a->init_from,
                      "Fine-tuning: begin with the weights of a checkpoint");
  command
      ->add_option("--init-new", a->init_new,
                   "With --init-from: parameters or modules that begin anew")
      ->delimiter(',');
  command->add_flag("--overwrite", a->overwrite,
                    "Begin anew in a folder that has checkpoints: the first\none of this run "
                    "replaces them");
  command->add_option("--checkpoint", a->checkpoint, "Folder of the checkpoints");
  command
      ->add_option("--on-usr1", a->on_usr1,
                   "What SIGUSR1, a scheduler's notice, asks for: save-and-exit (143),\n"
                   "save, ignore")
      ->check(CLI::IsMember({"save-and-exit", "save", "ignore"}))
      ->capture_default_str();
  command->add_flag("--dry-run", a->dry_run,
                    "Check all that a run would, print recipe and step plan");
  command->add_flag("--json", a->json, "One JSON object per line on stdout");
  add_outlets(train, *a);
  command->add_flag("--help-recipe", a->help_recipe, "List all keys of recipes");
  add_launch_flags(*command, a->launch);
  add_engine_flag(*command, a->engine);
  command->callback([a, recipe, run, &invocation] {
    if (recipe->count() == 0 && !a->help_recipe) throw CLI::RequiredError("recipe");
    invocation.exit_code = run(*a);
  });
}

void add_train_command(CLI::App& app, Invocation& invocation) {
  add_train_arguments(*app.add_subcommand("train", "Train a model as a recipe says"), invocation,
                      run_train);
}

launch::LaunchOptions train_launch_options(const TrainArguments& a,
                                           std::vector<std::string>& errors) {
  launch::LaunchOptions options = to_launch_options(a.launch, errors);
  options.output = launch::OutputMode::kRaw;
  options.rank_0_reports = true;
  if (a.json) {
    options.on_end = [](int exit_code, const std::string& report, bool rank_0_exited) {
      const bool said = rank_0_exited || exit_code == kExitOk || exit_code >= kExitInterrupted;
      if (!said) write_error_event(exit_code, report);
    };
  }
  options.environment.emplace_back(kCheckMemoryVariable, "1");
  const int columns = terminal_columns();
  if (columns > 0) options.environment.emplace_back(kTerminalVariable, std::to_string(columns));
  return options;
}

// Texts, each with an end that no path and no variable can hold.
std::string to_text(const CheckedRun& run) {
  return run.program + '\0' + run.library_path + '\0' + run.checkpoint_directory + '\0' +
         fmt::format("{} {} {}", run.may_be_lost.first, run.may_be_lost.count,
                     run.may_be_lost.servers) +
         '\0' + (run.elastic ? elastic_text(*run.elastic) : "") + '\0' +
         fmt::format("{}", fmt::join(run.chosen, " ")) + '\0';
}

Result<CheckedRun> parse_checked_run(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, '\0');
  if (parts.size() != 6 || !text.ends_with('\0')) {
    return Status(Code::kCorrupt, "the check of the run ended without its facts");
  }
  CheckedRun run{.program = std::string(parts[0]),
                 .library_path = std::string(parts[1]),
                 .checkpoint_directory = std::string(parts[2])};
  std::istringstream lost{std::string(parts[3])};
  lost >> run.may_be_lost.first >> run.may_be_lost.count >> run.may_be_lost.servers;
  if (!parts[4].empty()) {
    launch::Elastic& elastic = run.elastic.emplace();
    std::istringstream words{std::string(parts[4])};
    Duration::rep longest_stop = 0;
    words >> elastic.replaces >> longest_stop >> elastic.min_ranks >> elastic.max_ranks >>
        elastic.adds_places >> elastic.register_address;
    elastic.longest_stop = Duration(longest_stop);
  }
  std::istringstream chosen{std::string(parts[5])};  // none has a blank
  for (std::string word; chosen >> word;) run.chosen.push_back(word);
  return run;
}

}  // namespace stormo::cli
