#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/mesh.h>
#include <stormo/plan/model_shape.h>

namespace stormo::plan {

/// How the ranks of one mesh axis hold a value.
enum class Placement : std::uint8_t {
  kReplicate,  ///< each rank has all of it, all the same
  kShard,      ///< each rank has a part
  kPartial,    ///< each rank has a term of a sum
  kShared,     ///< there is one, in memory that all ranks of the axis read
  kDiverged,   ///< each rank has all of it, and they differ
};

/// One action of a training step. The parameters, gradients and optimizer state that it takes are
/// those of its range; analysis/step/step_verify.h says what each one needs and makes.
enum class ActionKind : std::uint8_t {
  kLoad,   ///< this rank's part of the global batch
  kCount,  ///< adds up, over all ranks, what their gradients count for
  // computations, of one micro-batch
  kForward,    ///< of a range of segments
  kLoss,       ///< of the last segment's output
  kRecompute,  ///< the forward of a range again: its first one has kept nothing but its input
  kBackward,   ///< of a range of segments, in reverse; adds to the gradients
  // parameters of the range, over the ranks of `axes`
  kAllGather,  ///< from parts to the whole
  kReshard,    ///< drops the whole, keeps this rank's part; moves nothing
  // gradients of the range, over the ranks of `axes`
  kAllReduce,         ///< from terms to their weighted average
  kReduceScatter,     ///< as kAllReduce, but each rank gets its part only
  kReleaseGradients,  ///< drops the terms of a reduce_scatter when it is over; moves nothing
  kFindUnused,        ///< which parameters have a gradient on any rank: the others stay as they are
  // one copy for the ranks of `axes`, in their memory
  kShareGradients,   ///< the others may read this rank's terms from here on: a barrier
  kShareParameters,  ///< the others may read what this rank has updated: a barrier
  // what gradients are multiplied by
  kNorm,     ///< their 2-norm, added up over the ranks of `axes`
  kUnscale,  ///< undoes the scale of the loss; all ranks agree whether a gradient overflowed
  kClip,     ///< by the norm
  kUpdate,   ///< the optimizer's step, of what this rank has of the range's optimizer state
  kAgree,    ///< all ranks learn the loss of the step, and whether any of them has to stop
};
inline constexpr std::array kActionKinds = {ActionKind::kLoad,
                                            ActionKind::kCount,
                                            ActionKind::kForward,
                                            ActionKind::kLoss,
                                            ActionKind::kRecompute,
                                            ActionKind::kBackward,
                                            ActionKind::kAllGather,
                                            ActionKind::kReshard,
                                            ActionKind::kAllReduce,
                                            ActionKind::kReduceScatter,
                                            ActionKind::kReleaseGradients,
                                            ActionKind::kFindUnused,
                                            ActionKind::kShareGradients,
                                            ActionKind::kShareParameters,
                                            ActionKind::kNorm,
                                            ActionKind::kUnscale,
                                            ActionKind::kClip,
                                            ActionKind::kUpdate,
                                            ActionKind::kAgree};

/// What an action's range counts.
enum class RangeOf : std::uint8_t { kNothing, kSegments, kParameters };
RangeOf range_of(ActionKind kind);
/// Whether the kind is about one micro-batch.
bool has_micro_batch(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kLoad;
  Range range = {};                    ///< see range_of()
  int micro_batch = 0;                 ///< of computations
  std::vector<std::string> axes = {};  ///< mesh axes whose ranks take part together
  /// On the communication lane: what follows goes on, until it needs what this makes.
  bool asynchronous = false;
  bool operator==(const Action&) const = default;
};

/// What every rank does in one training step, in order: one action after the other on its lane, as
/// soon as what it needs is there. Strategies are passes over it, `StepPlan -> Result<StepPlan>`.
struct StepPlan {
  std::string strategy = "one_device";  ///< names of the passes applied, joined by '+'
  Mesh mesh;
  int micro_batches = 1;     ///< that a rank's part of the batch is cut into
  bool scaled_loss = false;  ///< gradients are those of the loss times a scale
  bool clipped = false;      ///< gradients are clipped by their norm
  ModelShape model;
  /// Between steps, by axis of the mesh.
  std::vector<Placement> parameters;  ///< the trainable ones
  std::vector<Placement> frozen;      ///< the others
  std::vector<Placement> optimizer_state;
  std::vector<Action> actions;
  bool operator==(const StepPlan&) const = default;
};

std::string_view to_string(Placement placement);
std::string_view to_string(ActionKind kind);
/// "all_gather 4-7 over shard async", as in the text form.
std::string to_text(const Action& a);
/// With its number, and "block0" or "block0.weight..block1.bias" for the range; for messages.
std::string describe(const StepPlan& p, std::size_t action);

/// Versioned text form, one line per segment, parameter and action; round-trips through
/// parse_step_plan. Comments name what the ranges are.
std::string to_text(const StepPlan& p);
/// kBadPlan with line and column for anything else. Checks numbers, not meaning: that is
/// analysis::verify.
Result<StepPlan> parse_step_plan(std::string_view text);
std::uint64_t hash(const StepPlan& p);

}  // namespace stormo::plan
