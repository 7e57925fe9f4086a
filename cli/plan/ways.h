#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/train/open_keys.h>
#include <stormo/train/options.h>
#include <stormo/train/planner/traffic.h>
#include <stormo/train/task.h>

namespace stormo::cli {

/// What a step of `options` takes with each value of the key that is open. `like`: the step with
/// one of them; if its computations were measured, the codecs are measured here, too.
Result<std::vector<train::TrafficWay>> priced_ways(comm::StepModel& model,
                                                   const train::TrainerOptions& options,
                                                   const train::Task& task,
                                                   const comm::StepInput& like,
                                                   const train::OpenKeys& open);

/// A table, which says what ranks would take.
void print_ways(const std::vector<train::TrafficWay>& ways, const train::OpenKeys& open);

/// The same as a list of JSON objects.
std::string ways_json(const std::vector<train::TrafficWay>& ways);

}  // namespace stormo::cli
