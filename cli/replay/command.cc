// The words of `stormo replay`.

#include <cli/commands.h>
#include <cli/replay/arguments.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo train recipes/mnist_ps.toml -n 3 --record runs/record\n"
    "  stormo replay runs/record\n"
    "  stormo replay runs/record data.path=data/mnist --json\n"
    "\n"
    "All gradients are computed again, in one process, from the parameters that the workers had\n"
    "read; what was recorded is the order of reads and pushes. The outcome is that of the run bit\n"
    "for bit, on the same kind of processor. Exit codes: 0 the same weights, or the run did not\n"
    "come to its end; 1 other weights, or a failure; 2 usage.";

void add_flags(CLI::App& command, ReplayArguments& a) {
  command.add_option("record", a.directory, "Folder of stormo train --record")->required();
  command.add_option("overrides", a.overrides,
                     "key=value: changes to the recipe, such as data.path");
  command.add_flag("--json", a.json, "One JSON object per line on stdout");
}

}  // namespace

void add_replay_command(CLI::App& app, Invocation& invocation) {
  add_command(app, invocation, "replay", "Train again as a run with parameter servers did",
              kExamples, add_flags, run_replay);
}

}  // namespace stormo::cli
