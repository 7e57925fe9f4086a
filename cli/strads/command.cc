// The words of `stormo strads`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/number_check.h>
#include <cli/recipe_file.h>
#include <cli/strads/run.h>
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

constexpr const char* kLassoExamples =
    "  stormo strads lasso --x X.npy --y y.npy --lambda 0.05 --out b.npy -n 4\n"
    "  stormo strads lasso --columns 200 --no-check --no-priority   32 naive updates: diverges\n"
    "  stormo strads lasso --virtual 16 --stragglers 1:10x --depth 2\n"
    "  stormo strads lasso --cyclic                                 one column after the other\n"
    "\n"
    "Minimises |y - X b|^2 / 2 + lambda |b|_1. Every rank has rows of X. A run with --virtual and\n"
    "one with as many ranks have equal updates in equal order, and equal results. Exit codes: 0\n"
    "done; 1 a failure, or the updates diverged; 2 usage or configuration. See docs/strads.md.";

constexpr const char* kFactoriseExamples =
    "  stormo strads factorise --ratings ratings.npy --rank 16 --out factors -n 4\n"
    "  stormo strads factorise --virtual 8 --compute 1ms\n"
    "\n"
    "Finds W and H with W H' near to the known elements of a matrix, factor by factor (CCD++).\n"
    "Every rank has rows of the matrix. Exit codes as of 'stormo strads lasso'. See "
    "docs/strads.md.";

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

constexpr const char* kSeeded = "Of made data, first values and draws";

template <class Arguments>
StradsMaker maker_of(const char* name, const Arguments& a) {
  return {.name = name,
          .options = options_text(a),
          .check_memory = [&a](int processes) { return check_memory(a, processes); },
          .make = [&a](int processes) { return make_program(a, processes); }};
}

/// Both programs: what is wrong is said before anything runs.
template <class Arguments>
int run(const char* name, const Arguments& a, const Invocation& invocation,
        void (*check)(const Arguments&, std::vector<std::string>&)) {
  const LaunchFlags& flags = a.common.launch;
  const bool simulates = a.common.virtual_workers.has_value();
  const auto place = simulates ? Result(transport::Rendezvous()) : find_place("stormo", flags);
  if (!place.ok()) return fail_strads(name, place.status());
  const bool is_rank = place->source != "none";
  std::vector<std::string> wrong;
  check(a, wrong);
  if (!is_rank) {  // ranks look at the memory of their host together
    const Status enough = check_memory(a, simulates ? 1 : ranks_here(flags));
    if (!enough.ok()) wrong.push_back(enough.message());
  }
  if (!wrong.empty()) {
    return fail_strads(name, invalid_argument(fmt::format("{}", fmt::join(wrong, "\n"))));
  }
  if (simulates) return run_virtual(a.common, maker_of(name, a));
  if (is_rank || !flags.wants_launch()) return run_as_rank(*place, a.common, maker_of(name, a));
  launch::LaunchOptions launch = to_launch_options(flags, wrong);
  launch.output = launch::OutputMode::kRaw;
  return launch_copies(std::move(launch), invocation, "strads");
}

/// `seeded`: what --seed is of.
void add_common(CLI::App& command, StradsArguments& a, const char* seeded) {
  command.add_option("--seed", a.seed, seeded)->check(at_least(0))->capture_default_str();
  command.add_flag("--json", a.json, "One JSON object per judgement on stdout, and one at the end");
  auto* simulated = command.add_option("--virtual", a.virtual_workers,
                                       "Number of workers in virtual time, in one process");
  command.add_option("--compute", a.compute, "Virtual time of a worker for its part of a block")
      ->needs(simulated)
      ->capture_default_str();
  command.add_option("--jitter", a.jitter, "Of this time: 0.1 means from 10 % less to 10 % more")
      ->needs(simulated)
      ->capture_default_str();
  command.add_option("--latency", a.latency, "Virtual time of a message, each way")
      ->needs(simulated)
      ->capture_default_str();
  command
      .add_option("--stragglers", a.stragglers,
                  "COUNT:FACTORx: the last workers take longer, 2:10x: two of them\n10 times as "
                  "long; may be repeated")
      ->needs(simulated)
      ->allow_extra_args(false);
  add_launch_flags(command, a.launch);
}

void add_lasso_data(CLI::App& command, LassoArguments& a) {
  auto* x = command.add_option("--x", a.x, "X, a .npy file [rows, columns]");
  command.add_option("--y", a.y, "y, a .npy file [rows]");
  command.add_option("--rows", a.rows, "Of made data")->excludes(x)->capture_default_str();
  command.add_option("--columns", a.columns, "Of made data")->excludes(x)->capture_default_str();
  command.add_option("--nonzeros", a.nonzeros, "Of made data: in each column; default: all rows")
      ->excludes(x);
  command
      .add_option("--group", a.group, "Of made data: columns that are correlated with each other")
      ->excludes(x)
      ->capture_default_str();
  command.add_option("--correlation", a.correlation, "Of made data: within a group")
      ->excludes(x)
      ->capture_default_str();
  command
      .add_option("--lambda", a.lambda,
                  "Penalty, as a part of the one at which all coefficients are 0")
      ->capture_default_str();
}

/// What a block is, how many of them --cyclic updates together, and what --every is by default.
struct ScheduleWords {
  const char* block;
  const char* in_turn;
  bool one_in_turn;  // --round has no effect with --cyclic
  const char* every;
};

void add_schedule(CLI::App& command, ScheduleArguments& a, const ScheduleWords& words) {
  auto* cyclic = command.add_flag("--cyclic", a.cyclic, fmt::format("No draws: {}", words.in_turn));
  auto* round =
      command.add_option("--round", a.round, fmt::format("Most {}s in a round", words.block))
          ->capture_default_str();
  if (words.one_in_turn) round->excludes(cyclic);
  auto* threshold =
      command
          .add_option(
              "--threshold", a.threshold,
              fmt::format("Two {}s whose cosine is at or above this are not updated\nat the "
                          "same time",
                          words.block))
          ->excludes(cyclic)
          ->capture_default_str();
  command.add_option("--depth", a.depth, "Rounds that may be in flight besides the oldest one")
      ->capture_default_str();
  auto* base_weight =
      command
          .add_option("--base-weight", a.base_weight,
                      fmt::format("A {} is drawn by its last change plus this", words.block))
          ->excludes(cyclic)
          ->capture_default_str();
  command
      .add_flag("--no-priority", a.no_priority,
                fmt::format("Draw all {}s with equal weights", words.block))
      ->excludes(cyclic)
      ->excludes(base_weight);
  command.add_flag("--no-check", a.no_check, "Do not look for conflicts")
      ->excludes(cyclic)
      ->excludes(threshold);
  command.add_option("--every", a.every,
                     fmt::format("Rounds between judgements; default: {}", words.every));
}

void add_lasso_end(CLI::App& command, LassoArguments& a) {
  command.add_option("--rounds", a.rounds, "Rounds, at most")->capture_default_str();
  command
      .add_option("--tolerance", a.tolerance,
                  "Ends when the objective is certainly so near to its minimum, as a\npart of it")
      ->capture_default_str();
}

void add_lasso(CLI::App& strads, Invocation& invocation) {
  CLI::App* command = strads.add_subcommand("lasso", "Regression with few nonzero coefficients");
  command->footer(kLassoExamples);
  const auto a = std::make_shared<LassoArguments>();
  add_lasso_data(*command, *a);
  add_schedule(*command, a->schedule,
               {.block = "column",
                .in_turn = "one column after the other",
                .one_in_turn = true,
                .every = "as many as have an update for\neach column on average, or more where "
                         "--depth needs it"});
  add_lasso_end(*command, *a);
  command->add_option("-o,--out", a->common.out, "File for the coefficients, .npy");
  add_common(*command, a->common, kSeeded);
  command->callback(
      [a, &invocation] { invocation.exit_code = run("lasso", *a, invocation, check_lasso); });
}

void add_factorise(CLI::App& strads, Invocation& invocation) {
  CLI::App* command =
      strads.add_subcommand("factorise", "Factors of a matrix with unknown elements");
  command->footer(kFactoriseExamples);
  const auto a = std::make_shared<FactoriseArguments>();
  auto* ratings = command->add_option(
      "--ratings", a->ratings, "The known elements, a .npy file [elements, 3]: row, column, value");
  command->add_option("--rows", a->rows, "Of made data")->excludes(ratings)->capture_default_str();
  command->add_option("--columns", a->columns, "Of made data")
      ->excludes(ratings)
      ->capture_default_str();
  command->add_option("--known", a->known, "Of made data: known elements of each row")
      ->excludes(ratings)
      ->capture_default_str();
  command->add_option("--rank", a->rank, "Factors")->capture_default_str();
  command->add_option("--lambda", a->lambda, "Penalty")->capture_default_str();
  command->add_option("--inner", a->inner, "Updates of each factor before the next one's turn")
      ->capture_default_str();
  command->add_option("--passes", a->passes, "Passes over all factors")->capture_default_str();
  command->add_option("-o,--out", a->common.out, "Folder for W.npy and H.npy");
  add_common(*command, a->common, kSeeded);
  command->callback([a, &invocation] {
    invocation.exit_code = run("factorise", *a, invocation, check_factorise);
  });
}

}  // namespace

void add_strads_train_arguments(CLI::App& command, Invocation& invocation,
                                int (*run)(const StradsTrainArguments& a)) {
  command.footer(kTrainExamples);
  const auto a = std::make_shared<StradsTrainArguments>();
  a->schedule.threshold = kNetThreshold;
  take_recipe_names(
      command.add_option("recipe", a->recipe, "Recipe, a TOML file, as of 'stormo train'"))
      ->required();
  command.add_option("overrides", a->overrides, "key=value: changes to the recipe");
  command.add_option("--rounds", a->rounds, "Rounds of the whole run; default: the recipe's steps");
  command
      .add_option("--units", a->units,
                  "Of a layer in a block: slices of a parameter along its first\ndimension")
      ->capture_default_str();
  add_schedule(command, a->schedule,
               {.block = "block",
                .in_turn = "all blocks in turn, --round of them",
                .one_in_turn = false,
                .every = "those of a pass over the\ndata"});
  command.add_option("--checkpoint", a->checkpoint, "Folder of the checkpoints");
  command.add_flag("--resume", a->resume, "Go on from the newest checkpoint");
  command.add_flag("--overwrite", a->overwrite, "Begin anew in a folder that has checkpoints");
  add_common(command, a->common, "Of draws of blocks");
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
