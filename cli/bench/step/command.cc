#include <cli/bench/commands.h>

#include <cli/bench/step/opponents.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo bench step --model mlp,cnn -n 2                     against libtorch alone\n"
    "  stormo bench step --model gpt --strategy ddp -n 2 --against pytorch_ddp,pytorch_fsdp\n"
    "  stormo bench step --model wide --hosts 2 --rate 1gbit --against pytorch_ddp    (root)\n"
    "  stormo bench step --model wide --strategy ddp_int8 --hosts 2 --rate 1gbit \\\n"
    "    --against pytorch_ddp,pytorch_fp16_hook,pytorch_powersgd                     (root)\n"
    "  stormo bench step --model mlp --batch 32 --strategy one_device --against pytorch,arena\n"
    "  stormo bench step --model mlp,cnn,gpt,wide -n 2 --against predicted\n"
    "  stormo bench step --model gpt --strategy 1f1b -n 2 --against pytorch_1f1b,predicted\n"
    "  stormo bench step --model gpt --strategy tensor -n 2 --against pytorch_tensor,one_process\n"
    "\n"
    "docs/benchmarks.md says how figures are made and what they mean.";

void add_flags(CLI::App& command, StepArguments& a) {
  add_training_flags(command, a, "rank, or of all that share a model", help_of(step_opponents()),
                     "torch_step.py and hosts");
  add_made_hosts_flags(command, a);
  command
      .add_option("--strategy", a.strategy, "How to train; a name that stands for keys of recipes")
      ->capture_default_str();
}

}  // namespace

void add_bench_step_command(CLI::App& bench, Invocation& invocation) {
  add_command(bench, invocation, "step", "Measure training steps", kExamples, add_flags,
              run_bench_step);
}

}  // namespace stormo::cli
