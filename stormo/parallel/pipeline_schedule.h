#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::parallel {

/// One computation of a stage: of a micro-batch, by one of its chunks of segments.
struct StageStep {
  enum class Kind { kForward, kBackward } kind = Kind::kForward;
  int micro_batch = 0;
  int chunk = 0;
  bool operator==(const StageStep&) const = default;
};

/// The sizes of a pipeline. Chunk c of stage s is part c * stages + s of the model, so a
/// micro-batch passes the stages `chunks` times.
struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  ///< of segments, on each stage
};

/// A schedule: in which order a stage computes. A pure function of the stage; every forward and
/// backward occurs once. The orders of all stages must fit together, which pipeline() verifies.
struct PipelineSchedule {
  std::string name;
  /// kInvalidArgument with what would fit, for sizes that the schedule does not have.
  std::function<Status(const PipelineShape&)> check;
  std::function<std::vector<StageStep>(const PipelineShape&, int stage)> order;
};

/// All forwards, then all backwards. Idle share (p-1)/(m+p-1); keeps the activations of all m
/// micro-batches. Y. Huang et al., "GPipe", NeurIPS 2019.
PipelineSchedule gpipe();

/// Stage s begins with p-s forwards, then a backward follows each forward. Idle share as gpipe();
/// keeps the activations of at most p-s micro-batches. D. Narayanan et al., "PipeDream", SOSP 2019,
/// with a flush at the end of the step. Needs m >= p.
PipelineSchedule one_forward_one_backward();

/// As one_forward_one_backward(), but stage s begins with 2(p-s)-1 forwards, so that it computes
/// while tensors are on their way: moves between hosts cost time only at the beginning and at the
/// end of a step. Idle share as gpipe(); keeps the activations of at most 2(p-s)-1 micro-batches.
/// Y. Zhuang et al., "On optimizing the communication of model parallelism", MLSys 2023.
PipelineSchedule eager_1f1b();

/// one_forward_one_backward() with several chunks on each stage: idle share about 1/v of it for v
/// chunks, and v times as many moves. D. Narayanan et al., "Efficient large-scale language model
/// training on GPU clusters using Megatron-LM", SC 2021. Needs m to be a multiple of p.
PipelineSchedule interleaved();

/// "gpipe", "1f1b", "eager_1f1b", "interleaved".
const std::vector<std::string>& pipeline_schedule_names();
/// kInvalidArgument lists the names for another one.
Result<PipelineSchedule> pipeline_schedule(std::string_view name);

}  // namespace stormo::parallel
