// What stands in for `stormo train` in a build without libtorch.
#include <fmt/format.h>

#include <cli/commands.h>

namespace stormo::cli {

void add_train_command(CLI::App& app, Invocation& invocation) {
  CLI::App* train = app.add_subcommand("train", "Train a model (not in this build: no libtorch)");
  train->prefix_command();  // whatever its options are
  train->callback([&invocation] {
    fmt::print(stderr,
               "stormo: this program was built without libtorch and cannot train; build it with "
               "'cmake --preset release' (./quickstart fetches libtorch)\n");
    invocation.exit_code = kExitUsage;
  });
}

}  // namespace stormo::cli
