// What `stormo` asks of stormo-train; not for people.
#include <fmt/format.h>

#include <cli/commands.h>
#include <cli/doctor/torch_facts.h>
#include <cli/own_program.h>
#include <cli/strads/program.h>
#include <cli/train/arguments.h>
#include <cli/train/check.h>

namespace stormo::cli {

void add_inner_commands(CLI::App& app, Invocation& invocation) {
  add_train_arguments(*app.add_subcommand(kCheckCommand, "")->group(""), invocation, check_train);
  add_strads_train_arguments(*app.add_subcommand(kCheckStradsCommand, "")->group(""), invocation,
                             check_strads_train_run);
  app.add_subcommand(kFactsCommand, "")->group("")->callback([] {
    fmt::print("{}\n", to_json(torch_facts()->value()));
  });
}

}  // namespace stormo::cli
