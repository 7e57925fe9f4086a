#pragma once

#include <string>
#include <vector>

namespace stormo::test {

/// "train FOLDER key=value ...": one run of the Trainer on the toy problem; rank r leaves the file
/// FOLDER/rank-r with a line "step N LOSS" per step and a line "end HASH STATUS", and
/// FOLDER/samples-r with a line "EPOCH:INDEX ..." per step. More such words are more runs, one
/// after the other on the same processes, until one fails.
int train_scenario(const std::vector<std::string>& arguments);

/// Checks of DistributedDataParallel and GradientReducer, by name.
int ddp_scenario(const std::string& name);

}  // namespace stormo::test
