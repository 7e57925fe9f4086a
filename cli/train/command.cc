#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/launch_flags.h>
#include <cli/output_path.h>
#include <cli/train/rank.h>
#include <stormo/base/printable.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/host_spec.h>
#include <stormo/parallel/strategy.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/recipe_task.h>
#include <stormo/train/strategy.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples =
    "  stormo train recipes/quickstart.toml -n 2\n"
    "  stormo train recipes/mnist.toml -n 2 data.path=data/mnist optimizer.lr=0.05\n"
    "  stormo train recipes/mnist.toml --dry-run            print recipe and plan, start nothing\n"
    "  stormo train recipes/mnist.toml -H a:2,b:2 --resume  go on from the newest checkpoint\n"
    "  mpirun -n 4 stormo train recipes/mnist.toml          --engine mpi: MPI moves the bytes too\n"
    "\n"
    "key=value changes a value of the recipe; --help-recipe lists all keys. Exit codes: 0 done;\n"
    "1 the run failed; 2 usage or configuration, no step was taken; 75 a peer was lost, and there\n"
    "is a checkpoint to --resume from; 130, 143 interrupted, with a checkpoint.";

struct TrainArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  LaunchFlags launch;
  std::string engine = "stormo";
  std::string trace;
  std::string checkpoint;
  std::string on_usr1 = "save-and-exit";
  bool resume = false;
  bool overwrite = false;
  bool dry_run = false;
  bool json = false;
  bool help_recipe = false;
};

using Errors = std::vector<std::string>;

int fail_usage(const Errors& errors, bool json) {
  for (const std::string& error : errors)
    fmt::print(stderr, "stormo train: {}\n", printable(error));
  if (json) write_error_event(kExitUsage, fmt::format("{}", fmt::join(errors, "\n")));
  return kExitUsage;
}

/// This process's place in a job, when something has started it as a rank. The job's secret stays
/// unread: its descriptor can be read only once, and init() will.
Result<transport::Rendezvous> place_in_job() {
  return launch::read_environment([](std::string_view name) -> std::optional<std::string> {
    if (name == "STORMO_SECRET_FD") return std::nullopt;
    return launch::process_environment()(name);
  });
}

/// Number of ranks that -n and -H ask for; notes what is wrong with them.
int count_ranks(const LaunchFlags& flags, Errors& errors) {
  if (flags.ranks && (*flags.ranks < 1 || *flags.ranks > launch::kMaxRanks)) {
    errors.push_back(fmt::format("-n {}: the number of ranks must be from 1 to {}", *flags.ranks,
                                 launch::kMaxRanks));
    return 1;
  }
  int slots = 0;
  if (!flags.hosts.empty()) {
    const auto hosts = launch::parse_hosts(flags.hosts);
    if (!hosts.ok()) errors.push_back("-H: " + hosts.status().message());
    if (hosts.ok()) {
      for (const launch::HostSlots& host : *hosts) slots += host.slots;
    }
  }
  return flags.ranks.value_or(std::max(1, slots));
}

launch::LaunchOptions launch_options(const LaunchFlags& flags, bool json, Errors& errors) {
  launch::LaunchOptions options = to_launch_options(flags, errors);
  options.output = launch::OutputMode::kRaw;
  if (json) {
    options.on_end = [](int exit_code, const std::string& report, bool rank_0_exited) {
      const bool said = rank_0_exited || exit_code == kExitOk || exit_code >= kExitInterrupted;
      if (!said) write_error_event(exit_code, report);
    };
  }
  const int columns = terminal_columns();
  if (columns > 0) options.environment.emplace_back(kTerminalVariable, std::to_string(columns));
  return options;
}

/// As probe_checkpoint_directory, but leaves no folder behind.
Status try_checkpoint_directory(const std::string& directory) {
  std::vector<fs::path> missing;  // the deepest first
  std::error_code ignored;
  for (fs::path p = fs::absolute(directory); !fs::exists(p, ignored); p = p.parent_path()) {
    missing.push_back(p);
  }
  const Status status = checkpoint::probe_checkpoint_directory(directory);
  for (const fs::path& p : missing) fs::remove(p, ignored);  // what is not empty stays
  return status;
}

/// Whether what the run will read and write beside its data can be; leaves everything as it was.
void check_files(const train::Recipe& recipe, const TrainArguments& a, Errors& errors) {
  const auto note = [&](const Status& status) {
    if (!status.ok()) errors.push_back(status.message());
  };
  if (!a.trace.empty()) note(check_output_path(a.trace).within("--trace"));
  const std::string& directory = recipe.train.checkpoint.directory;
  if (a.resume && !directory.empty()) note(train::check_resume(recipe).within("--resume"));
  if (!a.resume && !directory.empty()) {
    note(checkpoint::begin_run(directory, a.overwrite).status());
  }
  if (errors.empty() && !directory.empty()) note(try_checkpoint_directory(directory));
}

/// Everything that can be found out before a rank starts. The data, unless there are errors.
std::optional<train::RecipeData> check_world(const train::ParsedRecipe& parsed,
                                             const TrainArguments& a, Errors& errors) {
  std::optional<train::RecipeData> read;
  // A data key that could not be read would send the search to the default place.
  const bool data_known =
      std::none_of(parsed.errors.begin(), parsed.errors.end(),
                   [](const auto& e) { return e.find("data.") != std::string::npos; });
  if (data_known) {
    Result<train::RecipeData> data = train::load_data(parsed.recipe);
    if (!data.ok()) errors.push_back(data.status().message());
    const Status same =
        a.resume && data.ok() ? train::check_same_data(parsed.recipe, *data) : ok_status();
    if (!same.ok()) errors.push_back("--resume: " + same.message());
    if (data.ok()) read = std::move(*data);
  }
  check_files(parsed.recipe, a, errors);
  return read;
}

/// What is wrong for a rank, which reads its own recipe. The launcher has looked at files; under a
/// foreign one rank 0 does.
Errors problems_of_rank(const train::ParsedRecipe& parsed, const TrainArguments& a, int ranks,
                        bool look_at_files) {
  Errors errors = parsed.errors;
  if (!parsed.readable) return errors;
  const Errors wrong = train::check_recipe(parsed, ranks);
  errors.insert(errors.end(), wrong.begin(), wrong.end());
  if (look_at_files) check_files(parsed.recipe, a, errors);
  return errors;
}

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

/// The ranks have saved; where rank 0 is on another host, this one may not see the files.
void say_how_to_continue(const std::string& directory) {
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  const std::string where = "the newest checkpoint in '" + directory + "' on the host of rank 0";
  fmt::print(stderr, "{}\n", how_to_continue(newest.ok() ? *newest : where));
}

train::ParsedRecipe parse(const TrainArguments& a) {
  std::vector<std::string> overrides = a.overrides;
  if (!a.checkpoint.empty()) overrides.push_back("checkpoint.directory=" + a.checkpoint);
  train::ParsedRecipe parsed = train::load_recipe(a.recipe, overrides);
  parsed.recipe.train.resume = a.resume;
  parsed.recipe.train.overwrite = a.overwrite;
  if (a.resume && a.overwrite) {
    parsed.errors.push_back(
        "--resume goes on from checkpoints, --overwrite replaces them; give one");
  }
  parsed.recipe.train.on_usr1 = a.on_usr1 == "save"     ? train::OnUsr1::kSave
                                : a.on_usr1 == "ignore" ? train::OnUsr1::kIgnore
                                                        : train::OnUsr1::kSaveAndExit;
  return parsed;
}

int run(const TrainArguments& a, const Invocation& invocation) {
  if (a.help_recipe) {
    fmt::print("{}", train::recipe_reference());
    return kExitOk;
  }
  const train::ParsedRecipe parsed = parse(a);
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
  if (!parsed.readable) return fail_usage(parsed.errors, a.json);  // not what defaults lack
  Errors errors = parsed.errors;
  const int ranks = count_ranks(a.launch, errors);
  launch::LaunchOptions options = launch_options(a.launch, a.json, errors);
  const Errors wrong = train::check_recipe(parsed, ranks);
  errors.insert(errors.end(), wrong.begin(), wrong.end());
  std::optional<train::RecipeData> data = check_world(parsed, a, errors);
  if (!errors.empty()) return fail_usage(errors, a.json);
  if (a.dry_run) return dry_run(parsed.recipe, data->preprocessing, ranks, a.json);
  if (ranks == 1 && a.launch.hosts.empty()) {
    train_run.data = std::move(data);
    return run_rank(train_run);
  }
  data.reset();  // every rank reads its own
  const int code = launch_copies(std::move(options), invocation, "train");
  if (code == kExitSaved) say_how_to_continue(parsed.recipe.train.checkpoint.directory);
  return code;
}

}  // namespace

void add_train_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says");
  command->footer(kExamples);
  const auto a = std::make_shared<TrainArguments>();
  CLI::Option* recipe = command->add_option("recipe", a->recipe, "Recipe, a TOML file");
  command->add_option("overrides", a->overrides, "key=value: changes to the recipe");
  command->add_flag("--resume", a->resume, "Continue from the newest checkpoint");
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
  command->add_option("--trace", a->trace, "Write a Chrome/Perfetto trace file");
  command->add_flag("--help-recipe", a->help_recipe, "List all keys of recipes");
  add_launch_flags(*command, a->launch);
  add_engine_flag(*command, a->engine);
  command->callback([a, recipe, &invocation] {
    if (recipe->count() == 0 && !a->help_recipe) throw CLI::RequiredError("recipe");
    invocation.exit_code = run(*a, invocation);
  });
}

}  // namespace stormo::cli
