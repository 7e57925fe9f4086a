// What stands in, in a build without libtorch, for the commands that need it.
#include <fmt/format.h>

#include <cli/bench/commands.h>
#include <cli/commands.h>
#include <cli/doctor/torch_facts.h>
#include <cli/plan/load.h>
#include <cli/plan/search.h>
#include <cli/strads/train.h>

namespace stormo::cli {

namespace {

constexpr const char* kNoTorch =
    "this program was built without libtorch and cannot train; build it with 'cmake --preset "
    "release' (./quickstart fetches libtorch)";

void add_absent(CLI::App& app, const char* name, const char* help, Invocation& invocation) {
  CLI::App* command = app.add_subcommand(name, help);
  command->prefix_command();  // whatever its options are
  command->callback([&invocation] {
    fmt::print(stderr, "stormo: {}\n", kNoTorch);
    invocation.exit_code = kExitUsage;
  });
}

}  // namespace

void add_train_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "train", "Train a model (not in this build: no libtorch)", invocation);
}

void add_evaluate_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "evaluate", "Judge a trained model (not in this build: no libtorch)", invocation);
}

void add_predict_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "predict", "Ask a trained model (not in this build: no libtorch)", invocation);
}

void add_sample_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "sample", "Let a model write (not in this build: no libtorch)", invocation);
}

void add_replay_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "replay", "Train again as a record says (not in this build: no libtorch)",
             invocation);
}

void add_simulate_command(CLI::App& app, Invocation& invocation) {
  add_absent(app, "simulate", "Train in virtual time (not in this build: no libtorch)", invocation);
}

void add_bench_step_command(CLI::App& bench, Invocation& invocation) {
  add_absent(bench, "step", "Measure training steps (not in this build: no libtorch)", invocation);
}

void add_bench_async_command(CLI::App& bench, Invocation& invocation) {
  add_absent(bench, "async", "Measure workers that need not wait (not in this build: no libtorch)",
             invocation);
}

int run_strads_train(const StradsTrainArguments&) {
  fmt::print(stderr, "stormo strads train: {}\n", kNoTorch);
  return kExitUsage;
}

Result<StepInput> load_recipe_step(const PlanOptions&, const std::vector<int>&) {
  return invalid_argument(kNoTorch);
}

Status search_plans(const PlanOptions&) { return invalid_argument(kNoTorch); }

Result<std::optional<TorchFacts>> torch_facts() { return std::optional<TorchFacts>(); }

void add_inner_commands(CLI::App&, Invocation&) {}

}  // namespace stormo::cli
