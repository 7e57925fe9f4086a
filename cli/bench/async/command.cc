#include <cli/bench/commands.h>

#include <cli/bench/step/opponents.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo bench async --model mlp,wide -n 2 --strategy parameter_server:async,ddp\n"
    "  stormo bench async -n 2 --against no_communication,torch_rpc,tensorflow_ps --tensorflow PY\n"
    "  stormo bench async -n 2 --strategy parameter_server:async,parameter_server:sync --slow "
    "1:3x\n"
    "  stormo bench async -n 3 --strategy parameter_server:backup_workers --slow 2:10x \\\n"
    "    --against fast_workers\n"
    "  stormo bench async -n 2 --strategy parameter_averaging,diloco \\\n"
    "    --against pytorch_local_sgd,pytorch_diloco\n"
    "\n"
    "docs/benchmarks.md says how figures are made and what they mean.";

void add_flags(CLI::App& command, AsyncArguments& a) {
  add_training_flags(command, a, "worker", help_of(async_opponents()),
                     "torch_*_step.py and tensorflow_*_step.py");
  command
      .add_option(
          "--strategy", a.strategies,
          "How to train: parameter_server:POLICY, parameter_server:in_place (async without\n"
          "versions or locks), or a name of bench step; several are compared with the first\n"
          "one")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--slow", a.slow,
                     "Make a worker slow, by waits after its backward. 1:3x: forward and backward\n"
                     "of worker 1 take 3 times as long; turns:3x: of one worker in each step");
  command.add_option("--tensorflow", a.tensorflow, "An interpreter with tensorflow");
  command
      .add_flag("--svg", a.svg,
                "A picture of the losses over steps and over time, of the first\n"
                "round, on stdout; for one model")
      ->excludes(command.get_option("--json"));
}

}  // namespace

void add_bench_async_command(CLI::App& bench, Invocation& invocation) {
  add_command(bench, invocation, "async", "Measure workers that need not wait", kExamples,
              add_flags, run_bench_async);
}

}  // namespace stormo::cli
