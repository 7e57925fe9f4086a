#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/launch_flags.h>
#include <stormo/launch/job/launcher.h>

namespace stormo::cli {
namespace {

constexpr const char* kRunExamples =
    "  stormo run -n 2 -- ./my_trainer --epochs 3         2 ranks on this host\n"
    "  stormo run -H a:4,b:4 -- ./my_trainer              8 ranks on two hosts, over ssh\n"
    "  stormo run -H a:4,b:4 --remote-shell \"ssh -p 2222 {host}\" --interface eth1 -- "
    "./my_trainer\n"
    "\n"
    "Every rank's lines appear as '[rank] line'. The first failure ends all ranks and is reported\n"
    "with its rank, host and cause. Exit codes: 0 all ranks ended with 0; 1 the run failed;\n"
    "2 usage or configuration; 75 a peer was lost and state saved; 130, 143 interrupted.";

struct RunArguments {
  LaunchFlags launch;
  std::string output = "prefix";
  bool json = false;
  std::vector<std::string> program;
};

/// The program's words: those that were parsed, and all after "--" untouched.
std::vector<std::string> program_words(const RunArguments& arguments,
                                       const Invocation& invocation) {
  std::vector<std::string> words = arguments.program;
  bool beyond = false;
  for (int i = 2; i < invocation.argc; ++i) {
    const std::string_view word = invocation.argv[i];
    // With a program before it, "--" belongs to that program.
    if (beyond || (word == "--" && !words.empty())) words.emplace_back(word);
    beyond = beyond || word == "--";
  }
  return words;
}

Result<launch::LaunchOptions> to_options(const RunArguments& arguments,
                                         const Invocation& invocation) {
  std::vector<std::string> errors;
  launch::LaunchOptions options = to_launch_options(arguments.launch, errors);
  options.program = program_words(arguments, invocation);
  if (arguments.json)
    options.output = launch::OutputMode::kJson;
  else if (arguments.output == "raw")
    options.output = launch::OutputMode::kRaw;
  STORMO_RETURN_IF_ERROR(as_status(errors));
  return options;
}

int run(const RunArguments& arguments, const Invocation& invocation) {
  const auto options = to_options(arguments, invocation);
  const Result<int> code = options.ok() ? launch::launch(*options) : Result<int>(options.status());
  return code.ok() ? *code : fail("run", code.status());
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("run", "Run a program on several ranks and hosts");
  command->footer(kRunExamples);
  const auto arguments = std::make_shared<RunArguments>();
  add_launch_flags(*command, arguments->launch);
  command
      ->add_option("--output", arguments->output,
                   "prefix: '[rank] line'; raw: rank 0's output as it is, the rest to stderr")
      ->check(CLI::IsMember({"prefix", "raw"}))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object per line on stdout");
  command->add_option("program", arguments->program, "Program and its arguments, after --");
  command->callback(
      [arguments, &invocation] { invocation.exit_code = run(*arguments, invocation); });
}

}  // namespace stormo::cli
