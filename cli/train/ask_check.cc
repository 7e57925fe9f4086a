#include <cli/train/ask_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/own_program.h>
#include <cli/resize/job_socket.h>
#include <cli/torch_program.h>
#include <cli/train/arguments.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {
namespace {

/// Empty where the job has to do without.
std::string job_socket() {
  const Result<std::string> path = own_job_socket(launch::process_environment());
  if (path.ok()) return *path;
  fmt::print(stderr, "warning: `stormo resize` does not find this job: {}\n",
             message_text(path.status().message()));
  return {};
}

}  // namespace

int check_and_launch(const std::string& command, const char* check_command,
                     launch::LaunchOptions options, int ranks_here, bool json) {
  const auto fail = [&](int exit_code, const std::string& message) {
    return say_failed(command.c_str(), exit_code, {message}, json);
  };
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(kExitUsage, words.status().message());
  std::vector<std::string> check(words->begin() + std::ranges::count(command, ' '), words->end());
  check.front() = check_command;
  auto loaded = load_train_program(*words, ranks_here);
  const Result<Answer> answer = ask_train_program(std::move(check), loaded.get());
  if (!answer.ok()) return fail(kExitUsage, answer.status().message());
  if (answer->signal != 0) {
    return fail(kExitFailed,
                fmt::format("the check of the run was killed by signal {} ({}); no rank was "
                            "started; if it was the kernel, the data and the model, or the check "
                            "itself, lack memory",
                            answer->signal, ::sigdescr_np(answer->signal)));
  }
  if (answer->exit_code != kExitOk) {
    fmt::print("{}", answer->output);  // with --json the event that says what is wrong
    return answer->exit_code;
  }
  const Result<CheckedRun> run = parse_checked_run(answer->output);
  if (!run.ok()) return fail(kExitUsage, run.status().message());
  options.program = {run->program};
  for (const auto* more : {&*words, &run->chosen}) {
    options.program.insert(options.program.end(), more->begin(), more->end());
  }
  options.forks = loaded != nullptr || !options.hosts.empty();
  options.loaded = std::move(loaded);
  options.may_be_lost = run->may_be_lost;
  options.elastic = run->elastic;
  if (options.elastic) options.elastic->control = job_socket();
  if (!run->library_path.empty()) {
    options.environment.emplace_back("LD_LIBRARY_PATH", run->library_path);
  }
  const int code = launch_ranks(options, command.c_str());
  if (code == kExitSaved) say_how_to_continue(run->checkpoint_directory, command.c_str());
  return code;
}

}  // namespace stormo::cli
