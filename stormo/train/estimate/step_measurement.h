#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/base/status.h>

namespace stormo::train {

/// Times and memory of a step of one rank on this machine. Where several ranks compute layers or
/// samples together (Strategy::tensor, context, spatial), `times` and `activations` are those of
/// one of them, without what they send; but `times.update` is of all parameters.
struct StepMeasurement {
  analysis::ComputeTimes times;
  /// By segment: bytes of tensors that its forward keeps for its backward.
  std::vector<std::int64_t> activations;
  std::vector<std::int64_t> outputs;  ///< see output_bytes()
};

/// Of at least one value; of an even number of them the mean of the two in the middle.
double median(std::vector<double> values);

/// What lies on the line from `a` (t = 0) to `b` (t = 1), of the same model.
StepMeasurement between(const StepMeasurement& a, const StepMeasurement& b, double t);

/// Each time of what was measured several times: the shortest of all, or their median. At least one
/// round. The parts of a backward, which may be only in the first one, stay the same shares of it.
StepMeasurement shortest(const std::vector<StepMeasurement>& rounds);
StepMeasurement medians(const std::vector<StepMeasurement>& rounds);

/// Several measurements as text, to be read by another process of this program.
std::string to_text(const std::vector<StepMeasurement>& all);
Result<std::vector<StepMeasurement>> measurements_of(std::string_view text);

}  // namespace stormo::train
