#pragma once

#include <optional>
#include <string>

#include <cli/train/rank.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::cli {

/// What ranks have chosen for a key of the recipe that is "auto".
struct ChosenTraffic {
  std::string line;  ///< for people: the key, its value, and why
  std::string json;  ///< for programs
};

/// Gives `options` values for the keys that the recipe leaves open: those of the checkpoint from
/// which the run goes on, or what the ranks choose (train::choose_traffic). A collective, if any
/// key is open; else nothing. What fails, fails on all ranks alike.
Result<std::optional<ChosenTraffic>> settle_traffic(const TrainRun& run, comm::Communicator& group,
                                                    const train::Task& task,
                                                    const data::Dataset& data,
                                                    train::TrainerOptions& options);

}  // namespace stormo::cli
