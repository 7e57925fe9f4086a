#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// What a plan does not say of the memory of its values.
struct MemorySizes {
  /// Numbers, in the parameter's type, that the optimizer keeps for each element.
  int optimizer_numbers = 0;
  /// By segment: bytes that the backward of one micro-batch needs, the segment's output among them.
  /// Empty: unknown, taken as 0.
  std::vector<std::int64_t> activations;
  /// By segment: bytes of its output for one micro-batch, of all positions, which is kept where the
  /// segment is to be recomputed. Empty: unknown, taken as 0.
  std::vector<std::int64_t> outputs;
  std::int64_t process = 0;  ///< bytes of a rank without its model. 0: unknown
};

/// Bytes on one rank. Of what the ranks of a host share, each counts its part.
struct Memory {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;  ///< with the buffers that they travel in
  std::int64_t optimizer_state = 0;
  std::int64_t activations = 0;
  std::int64_t process = 0;  ///< see MemorySizes
  std::int64_t total() const {
    return parameters + gradients + optimizer_state + activations + process;
  }
  bool operator==(const Memory&) const = default;
};

struct StepMemory {
  Memory between_steps;
  Memory peak;
  std::size_t peak_action = 0;  ///< the first that needs as much
  int stage = 0;                ///< of a pipeline, whose ranks these are
};

/// Of a verified plan, on the rank that holds the most, with the alignment of flat buffers.
/// Activations are counted until the backward, and all of them until the backward_weight where it
/// is in two parts. O(actions * (actions + parameters)).
StepMemory memory(const plan::StepPlan& plan, const MemorySizes& sizes);

}  // namespace stormo::analysis
