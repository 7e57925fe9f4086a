#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/action.h>

namespace stormo::parallel {

/// One computation of a stage: of a micro-batch, by one of its chunks of segments: a forward, or a
/// backward, in one step or two.
struct StageStep {
  using Kind = plan::ActionKind;
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  int chunk = 0;
  int delay = 0;  ///< of a backward: steps since its batch was loaded
  bool operator==(const StageStep&) const = default;
};

/// The sizes of a pipeline. The model is cut into stages * chunks parts.
struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  ///< of segments, on each stage
};

/// Which chunks of the stages follow each other in the model.
enum class ChunkOrder {
  kLoop,  ///< each first chunk in the order of the stages, then each second one in the same order
  kV,     ///< of two: each first chunk in the order of the stages, then the second ones in reverse
};
/// The number of a chunk among the parts of the model.
int part_of(ChunkOrder order, const PipelineShape& shape, int stage, int chunk);

/// A schedule: in which order a stage computes. A pure function of the stage; every forward and
/// backward occurs once. The backward of the first part is one step. The orders of all stages must
/// fit together, which pipeline() verifies.
struct PipelineSchedule {
  std::string name;
  int least_chunks = 1, most_chunks = 1;  ///< on each stage
  ChunkOrder chunk_order = ChunkOrder::kLoop;
  /// Steps overlap: the order is that of a step while batches of earlier ones are under way, and
  /// each stage updates by itself, after its last backward of a batch. The value: how many steps
  /// after the batch was loaded at least.
  std::optional<int> overlap = std::nullopt;
  /// Of numbers of stages and micro-batches; as check() below.
  std::function<Status(const PipelineShape&)> check;
  std::function<std::vector<StageStep>(const PipelineShape&, int stage)> order;
};

/// kInvalidArgument with what would fit, for sizes that the schedule does not have.
Status check(const PipelineSchedule& schedule, const PipelineShape& shape);

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

/// ZB-H1: one_forward_one_backward() whose backwards are in two steps, so that the stage before
/// gets its gradient earlier; the second step comes when the stage would wait. Let f, b and w be
/// the times of a forward and of both steps on each stage, with w <= b: a step of training takes
/// m(f+b+w) + (p-1)(f+b-w). Each stage keeps the activations of at most p micro-batches. P. Qi et
/// al., "Zero bubble pipeline parallelism", ICLR 2024. Needs m >= p. (Their ZB-H2 is no faster
/// where all stages end a step together: with one chunk that takes at least m(f+b+w) + (p-1)f.)
PipelineSchedule zero_bubble();

/// ZB-V: as zero_bubble(), with two chunks on each stage: the stages follow each other in the model
/// from the first to the last, and back. With f = b = w of both chunks together, a step takes
/// m(f+b+w) + (p-1)f/2. Each stage keeps the activations of at most 2p chunks, as many as p
/// micro-batches of a stage. P. Qi et al., "Zero bubble pipeline parallelism", ICLR 2024. Needs
/// m >= 2p-1.
PipelineSchedule zero_bubble_v();

/// one_forward_one_backward() without a flush: a stage goes on with the next batch while backwards
/// of earlier ones come back, and updates as soon as it has all of a batch. Where moves take no
/// time, no stage waits until the pipeline is drained. This is another training: stage s of p
/// computes a batch with parameters that lack the updates of the ceil((p-1-s)/m) batches before it.
/// It keeps one version of its parameters more than that (p-s for m = 1), so that a backward uses
/// those of its forward. D. Narayanan et al., "PipeDream", SOSP 2019 (weight stashing).
PipelineSchedule pipedream();

/// As pipedream(), with 2 versions on each stage: all compute a batch with parameters that lack the
/// update of the batch before it, so the whole is SGD with gradients delayed by one step. D.
/// Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-2BW), ICML 2021.
/// Needs m >= p.
PipelineSchedule pipedream_2bw();

/// Decoupled parallel back-propagation: pipedream() for one micro-batch, so each of the p stages
/// (the paper's modules) updates once in a step, stage s with the gradient of the batch that was
/// loaded p-1-s steps before. The paper computes the forwards of a step one after the other; here
/// those of a batch overlap with backwards of earlier ones, which changes no number. Z. Huo, B. Gu,
/// Q. Yang, H. Huang, "Decoupled parallel backpropagation with convergence guarantee" (DDG), ICML
/// 2018.
PipelineSchedule delayed_gradients();

/// "gpipe", "1f1b", "eager_1f1b", "interleaved", "zero_bubble", "zero_bubble_v", "pipedream",
/// "pipedream_2bw", "ddg".
const std::vector<std::string>& pipeline_schedule_names();
/// kInvalidArgument lists the names for another one.
Result<PipelineSchedule> pipeline_schedule(std::string_view name);

}  // namespace stormo::parallel
