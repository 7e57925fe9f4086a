#include <cli/bench/commands.h>

#include <memory>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo bench async --model mlp,wide -n 2 --strategy parameter_server:async,ddp\n"
    "  stormo bench async -n 2 --against no_communication,torch_rpc,tensorflow_ps --tensorflow PY\n"
    "  stormo bench async -n 2 --strategy parameter_server:async,parameter_server:sync --slow "
    "1:3x\n"
    "  stormo bench async -n 3 --strategy parameter_server:backup_workers --slow 2:10x \\\n"
    "    --against fast_workers\n"
    "\n"
    "docs/benchmarks.md says how figures are made and what they mean.";

void add_flags(CLI::App& command, AsyncArguments& a) {
  add_launch_flags(command, a.launch);
  command.add_option("--model", a.models, "Models, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option(
          "--strategy", a.strategies,
          "How to train: parameter_server:POLICY, parameter_server:in_place (async without\n"
          "versions or locks), or a name of bench step; several are compared with the first\n"
          "one")
      ->delimiter(',')
      ->capture_default_str();
  // 0 is what they are without the flag
  command.add_option("--batch", a.batch, "Samples per worker; default: the model's")
      ->check(CLI::Range(1, 1'000'000'000));
  command
      .add_option("--steps", a.steps,
                  "Steps of each worker to time in every round; default: the model's")
      ->check(CLI::Range(1, 1'000'000'000));
  command.add_option("--rounds", a.rounds, "Rounds of all contenders; default: 5")
      ->check(CLI::Range(1, 1'000'000'000));
  command
      .add_option("--against", a.against,
                  "no_communication: every worker for itself; torch_rpc: a server over\n"
                  "torch.distributed.rpc; tensorflow_ps: TensorFlow's ParameterServerStrategy;\n"
                  "tensorflow_mirrored: its MultiWorkerMirroredStrategy;\n"
                  "fast_workers: parameter_server:sync without the worker that is slow")
      ->delimiter(',');
  command.add_option("--slow", a.slow,
                     "Make a worker slow, by waits after its backward. 1:3x: forward and backward\n"
                     "of worker 1 take 3 times as long; turns:3x: of one worker in each step");
  command.add_option("--python", a.python, "An interpreter with torch, for torch_rpc");
  command.add_option("--tensorflow", a.tensorflow, "An interpreter with tensorflow");
  command.add_option("--tools", a.tools,
                     "Folder of torch_rpc_step.py and tensorflow_*_step.py; default: this "
                     "program's");
  CLI::Option* json = command.add_flag("--json", a.json, "One JSON object per model on stdout");
  command
      .add_flag("--svg", a.svg,
                "A picture of the losses over steps and over time, of the first\n"
                "round, on stdout; for one model")
      ->excludes(json);
  command.add_option("--contender", a.contender, "")->group("");
}

}  // namespace

void add_bench_async_command(CLI::App& bench, Invocation& invocation) {
  CLI::App* command = bench.add_subcommand("async", "Measure workers that need not wait");
  command->footer(kExamples);
  const auto a = std::make_shared<AsyncArguments>();
  add_flags(*command, *a);
  command->callback([a, &invocation] { invocation.exit_code = run_bench_async(*a); });
}

}  // namespace stormo::cli
