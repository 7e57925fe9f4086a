// `stormo train` without libtorch: everything but the launch of several ranks is stormo-train's.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/own_program.h>
#include <cli/torch_program.h>
#include <cli/train/arguments.h>
#include <cli/train/report.h>
#include <stormo/checkpoint/folder.h>

namespace stormo::cli {
namespace {

/// Whether this process is to launch ranks, once the run has been checked. What is wrong with the
/// flags is told by the check.
bool launches_ranks(const TrainArguments& a) {
  if (a.help_recipe || a.dry_run || a.engine != "stormo") return false;
  const auto place = place_in_job();
  if (!place.ok() || place->source != "none") return false;  // it is a rank, or meant to be one
  if (std::getenv("TF_CONFIG") != nullptr) return false;     // it has a place in a cluster
  return a.launch.wants_launch();
}

int fail(const TrainArguments& a, int exit_code, const std::string& message) {
  fmt::print(stderr, "stormo train: {}\n", message);
  if (a.json) write_error_event(exit_code, message);
  return exit_code;
}
int fail(const TrainArguments& a, const Status& status) {
  return fail(a, kExitUsage, status.message());
}

/// The ranks have saved; where rank 0 is on another host, this one may not see the files.
void say_how_to_continue(const std::string& directory) {
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  const std::string where = "the newest checkpoint in '" + directory + "' on the host of rank 0";
  fmt::print(stderr, "{}\n", how_to_continue(newest.ok() ? *newest : where));
}

int launch_checked(const TrainArguments& a, const CheckedRun& run,
                   const std::vector<std::string>& words) {
  std::vector<std::string> errors;  // none: the check has looked
  launch::LaunchOptions options = train_launch_options(a, errors);
  options.program = {run.program};
  options.program.insert(options.program.end(), words.begin(), words.end());
  options.program.insert(options.program.end(), run.chosen.begin(), run.chosen.end());
  if (!run.library_path.empty()) {
    options.environment.emplace_back("LD_LIBRARY_PATH", run.library_path);
  }
  options.may_be_lost = run.may_be_lost;
  const int code = launch_ranks(options, "train");
  if (code == kExitSaved) say_how_to_continue(run.checkpoint_directory);
  return code;
}

}  // namespace

int run_train(const TrainArguments& a) {
  if (!launches_ranks(a)) return fail(a, become_train_program());
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(a, words.status());
  std::vector<std::string> check = *words;
  check.front() = kCheckCommand;  // in place of "train"
  const Result<Answer> answer = ask_train_program(std::move(check));
  if (!answer.ok()) return fail(a, answer.status());
  if (answer->signal != 0) {
    return fail(
        a, kExitFailed,
        fmt::format("the check of the run was killed by signal {} ({}); no rank was started; "
                    "if it was the kernel, the data and the model lack memory",
                    answer->signal, ::sigdescr_np(answer->signal)));
  }
  if (answer->exit_code != kExitOk) {
    fmt::print("{}", answer->output);  // with --json the event that says what is wrong
    return answer->exit_code;
  }
  const Result<CheckedRun> run = parse_checked_run(answer->output);
  if (!run.ok()) return fail(a, run.status());
  return launch_checked(a, *run, *words);
}

}  // namespace stormo::cli
