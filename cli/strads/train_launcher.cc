// `stormo strads train` without libtorch: everything but the launch of several ranks is
// stormo-train's.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include <cli/own_program.h>
#include <cli/place.h>
#include <cli/strads/train.h>
#include <cli/torch_program.h>
#include <cli/train/ask_check.h>
#include <cli/train/report.h>

namespace stormo::cli {
namespace {

constexpr const char* kName = "strads train";

/// Whether this process is to launch ranks, once the run has been checked. What is wrong with the
/// flags is told by the check.
bool launches_ranks(const StradsTrainArguments& a) {
  const auto place = place_in_job(a.common.launch);
  const bool alone = place.ok() && place->source == "none";
  return alone && !a.common.virtual_workers && a.common.launch.wants_launch();
}

int fail(int exit_code, const std::string& message) {
  fmt::print(stderr, "stormo {}: {}\n", kName, message);
  return exit_code;
}

}  // namespace

int run_strads_train(const StradsTrainArguments& a) {
  if (!launches_ranks(a)) return hand_over();
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(kExitUsage, words.status().message());
  std::vector<std::string> check(words->begin() + 1, words->end());
  check.front() = kCheckStradsCommand;  // in place of "strads train"
  auto loaded = load_train_program(*words, a.common.launch.ranks_here());
  const AskedCheck asked = ask_check(std::move(check), loaded.get(), fail);
  if (!asked.run) return asked.exit_code;
  std::vector<std::string> none;  // the check has looked
  launch::LaunchOptions options = to_launch_options(a.common.launch, none);
  options.output = launch::OutputMode::kRaw;
  set_checked_program(options, *asked.run, *words, std::move(loaded));
  const int code = launch_ranks(options, kName);
  if (code == kExitSaved) say_how_to_continue(asked.run->checkpoint_directory, kName);
  return code;
}

}  // namespace stormo::cli
