// What needs libtorch, in the program that has none: stormo-train does it.
#include <fmt/format.h>

#include <cli/bench/commands.h>
#include <cli/build_facts.h>
#include <cli/commands.h>
#include <cli/doctor/torch_facts.h>
#include <cli/own_program.h>
#include <cli/plan/load.h>
#include <cli/plan/search.h>
#include <cli/replay/arguments.h>
#include <cli/simulate/options.h>
#include <cli/torch_program.h>
#include <cli/trained/arguments.h>

namespace stormo::cli {

int evaluate(const ModelChoice&) { return hand_over(); }
int predict(const PredictArguments&) { return hand_over(); }
int sample(const SampleArguments&) { return hand_over(); }
int run_bench_step(const StepArguments&) { return hand_over(); }
int run_bench_async(const AsyncArguments&) { return hand_over(); }
int run_simulate(const SimulateArguments&) { return hand_over(); }
int run_replay(const ReplayArguments&) { return hand_over(); }

Result<StepInput> load_recipe_step(const PlanOptions&, const std::vector<int>&) {
  return become_train_program();
}

Result<bool> simulate_open_recipe(const PlanOptions&) { return become_train_program(); }

Status search_plans(const PlanOptions&) { return become_train_program(); }

Result<std::optional<TorchFacts>> torch_facts() {
  if (!kHasTorch) return std::optional<TorchFacts>();
  STORMO_ASSIGN_OR_RETURN(const Answer answer, ask_train_program({kFactsCommand}));
  if (answer.exit_code != kExitOk || answer.signal != 0) {
    return invalid_argument(fmt::format("{} ended with {} {}; see what it says above",
                                        kTrainProgram, answer.signal != 0 ? "signal" : "exit code",
                                        answer.signal != 0 ? answer.signal : answer.exit_code));
  }
  STORMO_ASSIGN_OR_RETURN(const TorchFacts facts, parse_torch_facts(answer.output));
  return std::optional(facts);
}

void add_inner_commands(CLI::App&, Invocation&) {}

}  // namespace stormo::cli
