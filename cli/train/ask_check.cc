#include <cli/train/ask_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/own_program.h>
#include <cli/torch_program.h>
#include <cli/train/arguments.h>
#include <cli/train/report.h>

namespace stormo::cli {
namespace {

using Fail = std::function<int(int exit_code, const std::string& message)>;

/// A run that stormo-train has checked; or nothing, with the exit code, after the cause was said.
struct AskedCheck {
  std::optional<CheckedRun> run;
  int exit_code = 0;
};

AskedCheck ask_check(std::vector<std::string> words, launch::ForkServer* loaded, const Fail& fail) {
  const Result<Answer> answer = ask_train_program(std::move(words), loaded);
  if (!answer.ok()) return {std::nullopt, fail(kExitUsage, answer.status().message())};
  if (answer->signal != 0) {
    const std::string killed = fmt::format(
        "the check of the run was killed by signal {} ({}); no rank was started; "
        "if it was the kernel, the data and the model, or the check itself, lack memory",
        answer->signal, ::sigdescr_np(answer->signal));
    return {std::nullopt, fail(kExitFailed, killed)};
  }
  if (answer->exit_code != kExitOk) {
    fmt::print("{}", answer->output);  // with --json the event that says what is wrong
    return {std::nullopt, answer->exit_code};
  }
  Result<CheckedRun> run = parse_checked_run(answer->output);
  if (!run.ok()) return {std::nullopt, fail(kExitUsage, run.status().message())};
  return {std::move(*run), kExitOk};
}

}  // namespace

int check_and_launch(const std::string& command, const char* check_command,
                     launch::LaunchOptions options, int ranks_here, bool json) {
  const Fail fail = [&](int exit_code, const std::string& message) {
    return say_failed(command.c_str(), exit_code, {message}, json);
  };
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(kExitUsage, words.status().message());
  std::vector<std::string> check(words->begin() + std::ranges::count(command, ' '), words->end());
  check.front() = check_command;
  auto loaded = load_train_program(*words, ranks_here);
  const AskedCheck asked = ask_check(std::move(check), loaded.get(), fail);
  if (!asked.run) return asked.exit_code;
  options.program = {asked.run->program};
  for (const auto* more : {&*words, &asked.run->chosen}) {
    options.program.insert(options.program.end(), more->begin(), more->end());
  }
  options.forks = loaded != nullptr || !options.hosts.empty();
  options.loaded = std::move(loaded);
  options.may_be_lost = asked.run->may_be_lost;
  if (!asked.run->library_path.empty()) {
    options.environment.emplace_back("LD_LIBRARY_PATH", asked.run->library_path);
  }
  const int code = launch_ranks(options, command.c_str());
  if (code == kExitSaved) say_how_to_continue(asked.run->checkpoint_directory, command.c_str());
  return code;
}

}  // namespace stormo::cli
