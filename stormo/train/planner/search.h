#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/base/status.h>
#include <stormo/codec/speed.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/data/dataset.h>
#include <stormo/parallel/search/candidates.h>
#include <stormo/train/estimate/measure_together.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Measures steps as a rank of the job would compute them, in the order given.
using MeasureSteps =
    std::function<Result<std::vector<StepMeasurement>>(const std::vector<Wanted>&)>;

/// A job whose fastest strategy is looked for. What `options` say of the strategy does not count.
struct SearchJob {
  const TrainerOptions& options;
  const Task& task;
  const data::Dataset& data;
  std::vector<int> ranks_per_host;
  std::int64_t memory = 0;    ///< bytes that a rank may use
  std::int64_t process = 0;   ///< of them, what a rank uses beside the step
  bool can_share = true;      ///< see planned_step()
  CodecSpeed codec = {};      ///< of that of the options
  MeasureSteps measure = {};  ///< empty: times are those of the operations
};

/// One way to train, and what it takes.
struct Outcome {
  parallel::Candidate candidate;
  comm::StepInput step;
  double seconds = 0;
  double idle = 0;
  analysis::Memory peak;
};

/// What a search has found.
struct Found {
  std::vector<Outcome> fitting;        ///< the fastest first; never empty
  std::map<std::string, int> refused;  ///< by reason
  std::optional<Outcome> smallest;     ///< of those that need too much memory
  int too_large = 0;
};

/// Compares all synchronous strategies of a job by the time that their plans are simulated to take.
/// kExhausted, with reasons, if none fits. Equal on ranks that have the same job and measurements.
Result<Found> search(const SearchJob& job, comm::StepModel& model);

/// The options with a way to train.
TrainerOptions with(TrainerOptions options, const parallel::Candidate& c);

/// The keys of a recipe that turn `given` into with(given, c), also those that only take back what
/// it says.
std::vector<std::string> keys_of(const parallel::Candidate& c, const TrainerOptions& given);

}  // namespace stormo::train
