#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/estimate/step_measurement.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// By segment: bytes of its output for `samples` samples. Computes a forward, also of a model that
/// lacks values.
std::vector<std::int64_t> output_bytes(const Task& task, const data::Dataset& dataset,
                                       std::int64_t samples);

/// What a measurement does beside.
struct MeasureOptions {
  bool in_parts = false;  ///< measure backwards in two parts, too
  /// For parameters, gradients and optimizer state. A model::Chain that lacks values and needs more
  /// is measured in pieces, one after the other.
  std::int64_t memory = INT64_MAX;
  std::function<void()> before_step = {};  ///< so that ranks that measure begin each step together
};

/// Trains a few steps, segment by segment, on batches of `samples` samples, and returns medians.
/// With one thread a computation takes no longer than this thread has computed: time in which
/// another process had the core is left out. The parameters change. Blocks for some steps, and for
/// as many again with `in_parts`. A model::Chain may lack values (ValuesLater). It gets them,
/// unless it is measured in pieces; then it lacks values afterwards.
Result<StepMeasurement> measure_step(const Task& task, const data::Dataset& dataset,
                                     const TrainerOptions& options, std::int64_t samples,
                                     const MeasureOptions& how = {});

}  // namespace stormo::train
