#include <string>
#include <vector>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/launch_flags.h>
#include <cli/own_program.h>
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
Result<std::vector<std::string>> program_words(const RunArguments& arguments) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> own, own_arguments());
  std::vector<std::string> words = arguments.program;
  bool beyond = false;
  for (const std::string& word : own) {
    // With a program before it, "--" belongs to that program.
    if (beyond || (word == "--" && !words.empty())) words.push_back(word);
    beyond = beyond || word == "--";
  }
  return words;
}

Result<launch::LaunchOptions> to_options(const RunArguments& arguments) {
  std::vector<std::string> errors;
  launch::LaunchOptions options = to_launch_options(arguments.launch, errors);
  STORMO_ASSIGN_OR_RETURN(options.program, program_words(arguments));
  if (arguments.json)
    options.output = launch::OutputMode::kJson;
  else if (arguments.output == "raw")
    options.output = launch::OutputMode::kRaw;
  STORMO_RETURN_IF_ERROR(as_status(errors));
  return options;
}

int run(const RunArguments& arguments) {
  const auto options = to_options(arguments);
  const Result<int> code = options.ok() ? launch::launch(*options) : Result<int>(options.status());
  return code.ok() ? *code : fail("run", code.status());
}

void add_flags(CLI::App& command, RunArguments& arguments) {
  add_launch_flags(command, arguments.launch);
  command
      .add_option("--output", arguments.output,
                  "prefix: '[rank] line'; raw: rank 0's output as it is, the rest to stderr")
      ->check(CLI::IsMember({"prefix", "raw"}))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "One JSON object per line on stdout");
  command.add_option("program", arguments.program, "Program and its arguments, after --");
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& invocation) {
  add_command<RunArguments>(app, invocation, "run", "Run a program on several ranks and hosts",
                            kRunExamples, add_flags, run);
}

}  // namespace stormo::cli
