#include <cli/train/ask_check.h>

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include <cli/commands.h>
#include <cli/torch_program.h>

namespace stormo::cli {

AskedCheck ask_check(std::vector<std::string> words, launch::ForkServer* loaded,
                     const std::function<int(int, const std::string&)>& fail) {
  const Result<Answer> answer = ask_train_program(std::move(words), loaded);
  if (!answer.ok()) return {std::nullopt, fail(kExitUsage, answer.status().message())};
  if (answer->signal != 0) {
    const std::string killed = fmt::format(
        "the check of the run was killed by signal {} ({}); no rank was started; "
        "if it was the kernel, the data and the model lack memory",
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

void set_checked_program(launch::LaunchOptions& options, const CheckedRun& run,
                         const std::vector<std::string>& words,
                         std::shared_ptr<launch::ForkServer> loaded) {
  options.program = {run.program};
  options.forks = loaded != nullptr || !options.hosts.empty();
  options.loaded = std::move(loaded);
  options.program.insert(options.program.end(), words.begin(), words.end());
  if (!run.library_path.empty()) {
    options.environment.emplace_back("LD_LIBRARY_PATH", run.library_path);
  }
}

}  // namespace stormo::cli
