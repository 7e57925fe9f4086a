#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Times and memory of a step of `task` with a single rank on this machine. Where several ranks
/// compute layers or samples together (Strategy::tensor, context, spatial), `times` and
/// `activations` are those of one of them, without what they send; but `times.update` is of all
/// parameters.
struct StepMeasurement {
  analysis::ComputeTimes times;
  /// By segment: bytes of tensors that its forward keeps for its backward.
  std::vector<std::int64_t> activations;
  std::vector<std::int64_t> outputs;  ///< see output_bytes()
};

/// By segment: bytes of its output for `samples` samples. Computes a forward, also of a model that
/// lacks values.
std::vector<std::int64_t> output_bytes(const Task& task, const data::Dataset& dataset,
                                       std::int64_t samples);

/// Trains a few steps, segment by segment, on batches of `samples` samples, and returns medians.
/// The parameters change. Blocks for some steps, and for as many again with `in_parts`: then also
/// of backwards in two parts. A model::Chain may lack values (ValuesLater). It gets them, unless
/// parameters, gradients and optimizer state need more than `memory` bytes: then pieces of it are
/// measured one after the other, and it lacks values afterwards.
Result<StepMeasurement> measure_step(const Task& task, const data::Dataset& dataset,
                                     const TrainerOptions& options, std::int64_t samples,
                                     bool in_parts, std::int64_t memory = INT64_MAX);

}  // namespace stormo::train
