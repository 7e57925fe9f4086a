// `stormo train` without libtorch: everything but the launch of several ranks is stormo-train's.
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

}  // namespace

int run_train(const TrainArguments& a) {
  if (!launches_ranks(a)) {
    return say_failed("train", kExitUsage, {become_train_program().message()}, a.json);
  }
  std::vector<std::string> said_by_check;
  return check_and_launch("train", kCheckCommand, train_launch_options(a, said_by_check),
                          a.launch.ranks_here(), a.json);
}

}  // namespace stormo::cli
