// `stormo train` without libtorch: everything but the launch of several ranks is stormo-train's.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/own_program.h>
#include <cli/place.h>
#include <cli/torch_program.h>
#include <cli/train/arguments.h>
#include <cli/train/ask_check.h>
#include <cli/train/report.h>
#include <stormo/launch/tf_config.h>

namespace stormo::cli {
namespace {

/// Whether this process is to launch ranks, once the run has been checked. What is wrong with the
/// flags is told by the check.
bool launches_ranks(const TrainArguments& a) {
  if (a.help_recipe || a.dry_run || a.engine != "stormo") return false;
  const auto place = place_in_job(a.launch);
  if (!place.ok() || place->source != "none") return false;  // it is a rank, or meant to be one
  const auto task = launch::task_of_environment(launch::process_environment());
  if (task && !(task->ok() && (*task)->servers.empty())) return false;  // a process of a cluster
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

int launch_checked(const TrainArguments& a, const CheckedRun& run,
                   const std::vector<std::string>& words,
                   std::shared_ptr<launch::ForkServer> loaded) {
  std::vector<std::string> errors;  // none: the check has looked
  launch::LaunchOptions options = train_launch_options(a, errors);
  set_checked_program(options, run, words, std::move(loaded));
  options.program.insert(options.program.end(), run.chosen.begin(), run.chosen.end());
  options.may_be_lost = run.may_be_lost;
  const int code = launch_ranks(options, "train");
  if (code == kExitSaved) say_how_to_continue(run.checkpoint_directory, "train");
  return code;
}

}  // namespace

int run_train(const TrainArguments& a) {
  if (!launches_ranks(a)) return fail(a, become_train_program());
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(a, words.status());
  std::vector<std::string> check = *words;
  check.front() = kCheckCommand;  // in place of "train"
  auto loaded = load_train_program(*words, a.launch.ranks_here());
  const AskedCheck asked =
      ask_check(std::move(check), loaded.get(),
                [&a](int code, const std::string& why) { return fail(a, code, why); });
  return asked.run ? launch_checked(a, *asked.run, *words, std::move(loaded)) : asked.exit_code;
}

}  // namespace stormo::cli
