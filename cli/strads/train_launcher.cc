// `stormo strads train` without libtorch: everything but the launch of several ranks is
// stormo-train's.
#include <cli/own_program.h>
#include <cli/place.h>
#include <cli/strads/program.h>
#include <cli/torch_program.h>
#include <cli/train/ask_check.h>

namespace stormo::cli {

int run_strads_train(const StradsTrainArguments& a) {
  const auto place = place_in_job(a.launch);
  const bool alone = place.ok() && place->source == "none";
  // what is wrong with the flags is told by the check
  if (!alone || a.dry_run || a.virtual_workers || !a.launch.wants_launch()) return hand_over();
  std::vector<std::string> said_by_check;
  launch::LaunchOptions options = to_launch_options(a.launch, said_by_check);
  options.output = launch::OutputMode::kRaw;
  return check_and_launch("strads train", kCheckStradsCommand, std::move(options),
                          a.launch.ranks_here(), /*json=*/false);
}

}  // namespace stormo::cli
