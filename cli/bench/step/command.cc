#include <cli/bench/commands.h>

#include <memory>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo bench step --model mlp,cnn -n 2                     against libtorch alone\n"
    "  stormo bench step --model gpt --strategy ddp -n 2 --against pytorch_ddp,pytorch_fsdp\n"
    "  stormo bench step --model wide --hosts 2 --rate 1gbit --against pytorch_ddp    (root)\n"
    "  stormo bench step --model mlp --batch 32 --strategy one_device --against pytorch,arena\n"
    "  stormo bench step --model mlp,cnn,gpt,wide -n 2 --against predicted\n"
    "  stormo bench step --model gpt --strategy 1f1b -n 2 --against pytorch_1f1b,predicted\n"
    "  stormo bench step --model gpt --strategy tensor -n 2 --against pytorch_tensor,one_process\n"
    "\n"
    "docs/benchmarks.md says how figures are made and what they mean.";

void add_flags(CLI::App& command, StepArguments& a) {
  add_launch_flags(command, a.launch);
  command.add_option("--model", a.models, "Models, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--strategy", a.strategy, "How to train; a name that stands for keys of recipes")
      ->capture_default_str();
  command.add_option("--batch", a.batch,
                     "Samples per rank, or of all that share a model; default: the model's");
  command.add_option("--micro-batches", a.micro_batches,
                     "Parts of a batch; default: 8 for pipelines, else 1");
  command.add_option("--steps", a.steps, "Steps to time in every round; default: the model's");
  command.add_option("--rounds", a.rounds, "Rounds of all contenders; default: 5");
  command
      .add_option("--against", a.against,
                  "pytorch_ddp, pytorch_fsdp: over Gloo; pytorch: a loop in Python without\n"
                  "communication; pytorch_gpipe, pytorch_1f1b, pytorch_interleaved,\n"
                  "pytorch_zero_bubble: its pipelines over Gloo; pytorch_tensor: its tensor\n"
                  "parallelism over Gloo; one_process: libtorch's loop in one process with as\n"
                  "many threads as ranks; arena: the same loop with its tensors in the Arena;\n"
                  "predicted: the simulated step, from times of its segments here")
      ->delimiter(',');
  command.add_option("--rate", a.rate,
                     "With --hosts 4: make 4 hosts with links of this rate (1gbit; root)");
  command.add_option("--ranks-per-host", a.ranks_per_host, "On hosts that are made")
      ->capture_default_str();
  command.add_option("--python", a.python, "An interpreter with torch, for PyTorch");
  command.add_option("--tools", a.tools,
                     "Folder of torch_step.py and hosts; default: this program's");
  command.add_flag("--json", a.json, "One JSON object per model on stdout");
  command.add_option("--contender", a.contender, "")->group("");
}

}  // namespace

void add_bench_step_command(CLI::App& bench, Invocation& invocation) {
  CLI::App* command = bench.add_subcommand("step", "Measure training steps");
  command->footer(kExamples);
  const auto a = std::make_shared<StepArguments>();
  add_flags(*command, *a);
  command->callback([a, &invocation] { invocation.exit_code = run_bench_step(*a); });
}

}  // namespace stormo::cli
