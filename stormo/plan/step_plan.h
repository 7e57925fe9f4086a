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
  kReplicate,  ///< each rank has the whole value, and all have the same
  kShard,      ///< each rank has an equal part, its shard
  kPartial,    ///< each rank has one term of a sum
  kShared,     ///< there is one copy, in memory that all ranks of the axis map
  kDiverged,   ///< each rank has a whole value, and the values differ
  kRemote,     ///< the value lies on parameter servers, which are no ranks of the mesh
  kStaged,     ///< each rank has the values of its stage of the pipeline; only on kStageAxis
  /// Each rank has its slice of what the model splits (Split), and the whole of the rest; only on
  /// kTensorAxis.
  kSplit,
};

/// The kind of an action of a training step. An action uses the parameters, gradients and optimizer
/// state of its range; analysis/step/step_verify.h lists the inputs and outputs of each kind.
enum class ActionKind : std::uint8_t {
  kLoad,   ///< loads the local batch: this rank's share of the global batch
  kCount,  ///< adds up the weights of all ranks' gradients; with servers of those of a worker
  // computations, of one micro-batch
  kForward,    ///< of a range of segments
  kLoss,       ///< of the last segment's output; over `axes`, whose ranks have parts of it
  kRecompute,  ///< the forward of a range again, of which only the input was kept
  kBackward,   ///< of a range of segments, in reverse; adds to the gradients
  // a backward in two parts, of the same range; not of the first segment
  kBackwardInput,   ///< the gradient of the input, for which the stage before waits
  kBackwardWeight,  ///< later, those of the parameters; adds to the gradients
  // between two stages of a pipeline, of one micro-batch; the range is the two segments between
  // which they are cut. The sender goes on at once, and the receiver until it needs the tensor.
  kMoveActivation,  ///< the output of the first segment to the stage of the second
  kMoveGradient,    ///< the gradient of that output back
  // parameters of the range, over the ranks of `axes`
  kAllGather,  ///< from shards to the whole
  kReshard,    ///< frees the whole, keeps this rank's shard; sends nothing
  // gradients of the range, over the ranks of `axes`
  kAllReduce,         ///< from terms to their weighted average
  kReduceScatter,     ///< as kAllReduce, but each rank gets only its shard
  kReleaseGradients,  ///< frees whole gradients after their reduce_scatter; sends nothing
  kSumTied,           ///< of parameters that several stages read: from terms to their sum
  /// Of those parameters of the range that the ranks of kTensorAxis do not split, where these have
  /// parts of the positions (StepPlan::sequence_parallel): from terms to their sum.
  kSumWhole,
  kFindUnused,  ///< finds parameters without gradient on all ranks; they are not updated
  // one copy for the ranks of `axes`, in their memory
  kShareGradients,   ///< a barrier, after which other ranks may read this rank's gradients
  kShareParameters,  ///< a barrier, after which other ranks may read the updated parameters
  // parameters on servers; each rank of the first axis of the mesh is a worker by itself, or has a
  // worker of the ranks of kWorkerAxis, of which the first one exchanges with the servers
  /// From the servers a whole copy of some version of the range; the first rank of a worker sends
  /// it to the others.
  kPull,
  kPush,  ///< this worker's gradients of the range to the servers, which update
  /// Parameters and optimizer state that diverged over the ranks of `axes`: to their averages,
  /// weighted by the samples of each rank since the average before. Where parameters are on servers
  /// these average: this worker's go to them, and the next pull brings the averages.
  kAverage,
  /// Of parameters that diverged over the ranks of `axes`, each of which is a worker by itself:
  /// this worker's values and the centre, which servers hold, move towards each other.
  kExchange,
  // factors of the gradients
  kNorm,     ///< their 2-norm, added up over the ranks of `axes`
  kUnscale,  ///< undoes the loss scale; all ranks learn whether a gradient overflowed
  kClip,     ///< scales gradients down if their norm is too large
  kUpdate,   ///< the optimizer's step, on the part of the range that this rank owns
  /// All ranks, with servers those of a worker, learn the loss of the step, and whether any of them
  /// has to stop.
  kAgree,
};
inline constexpr std::array kActionKinds = {ActionKind::kLoad,
                                            ActionKind::kCount,
                                            ActionKind::kForward,
                                            ActionKind::kLoss,
                                            ActionKind::kRecompute,
                                            ActionKind::kBackward,
                                            ActionKind::kBackwardInput,
                                            ActionKind::kBackwardWeight,
                                            ActionKind::kMoveActivation,
                                            ActionKind::kMoveGradient,
                                            ActionKind::kAllGather,
                                            ActionKind::kReshard,
                                            ActionKind::kAllReduce,
                                            ActionKind::kReduceScatter,
                                            ActionKind::kReleaseGradients,
                                            ActionKind::kSumTied,
                                            ActionKind::kSumWhole,
                                            ActionKind::kFindUnused,
                                            ActionKind::kShareGradients,
                                            ActionKind::kShareParameters,
                                            ActionKind::kPull,
                                            ActionKind::kPush,
                                            ActionKind::kAverage,
                                            ActionKind::kExchange,
                                            ActionKind::kNorm,
                                            ActionKind::kUnscale,
                                            ActionKind::kClip,
                                            ActionKind::kUpdate,
                                            ActionKind::kAgree};

/// What the range of an action refers to.
enum class RangeOf : std::uint8_t { kNothing, kSegments, kParameters };
RangeOf range_of(ActionKind kind);
/// Whether actions of this kind work on one micro-batch.
bool has_micro_batch(ActionKind kind);
/// Whether they compute the gradient of the input of their segments: kBackward, kBackwardInput.
bool passes_gradient(ActionKind kind);
/// Whether they add to the gradients of parameters: kBackward, kBackwardWeight.
bool adds_gradients(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kLoad;
  Range range = {};     ///< see range_of()
  int micro_batch = 0;  ///< of computations
  /// Of which batch: 0 of the one that the step loads, n of the one loaded n steps before. A step
  /// leaves out what is of a batch before the first, or before the last agree.
  int delay = 0;
  std::vector<std::string> axes = {};  ///< mesh axes over whose ranks a collective runs
  /// Started on the communication lane: later actions run meanwhile, until one needs the result.
  bool asynchronous = false;
  /// The action is for one of every n steps: a pull or exchange for the first, others for the last.
  /// Others are done also in steps after which all ranks do something together: before an
  /// evaluation, a save or the end.
  int every = 1;
  bool operator==(const Action&) const = default;
};

/// How ranks that have parts of the positions compute attention (tensor/context.h).
enum class AttentionForm : std::uint8_t {
  kRing,   ///< keys and values pass all ranks in turn
  kHeads,  ///< each rank gets all positions of its share of the heads
};
inline constexpr std::array kAttentionForms = {AttentionForm::kRing, AttentionForm::kHeads};
std::string_view to_string(AttentionForm form);

/// The actions of one training step, in order. Each rank executes those that concern it
/// (project()), but the ones that are not for this step (Action::every). Each lane runs its actions
/// one after the other, as soon as their inputs are available. Strategies are lists of passes,
/// `StepPlan -> Result<StepPlan>`.
///
/// Where actions have a delay, steps overlap: each begins while batches of earlier ones are under
/// way. A rank computes a batch with the parameters that it had when it loaded it (or with the
/// newest, see newest_weights). Before an agree all batches are finished, by actions with a delay
/// alone.
struct StepPlan {
  std::string strategy = "one_device";  ///< names of the passes applied, joined by '+'
  Mesh mesh;
  int micro_batches = 1;     ///< into which the local batch is divided
  bool scaled_loss = false;  ///< gradients are those of the loss times a scale
  bool clipped = false;      ///< gradients are clipped by their norm
  AttentionForm attention = AttentionForm::kRing;  ///< with kContextAxis
  /// Outside of what the ranks of kTensorAxis split, each has the activations of its part of the
  /// positions (tensor/split.h); only with this axis.
  bool sequence_parallel = false;
  /// Where steps overlap: each computation uses the newest parameters, so that a backward combines
  /// them with activations that older ones made.
  bool newest_weights = false;
  /// The one rank of kTensorAxis that has the targets: it computes the loss, and sends it with the
  /// gradient of the output to the others. -1: each rank has them.
  int labels = -1;
  ModelShape model;
  /// Placements between steps, by axis of the mesh.
  std::vector<Placement> parameters;  ///< the trainable ones
  std::vector<Placement> frozen;      ///< the others
  std::vector<Placement> optimizer_state;
  std::vector<Action> actions;
  bool operator==(const StepPlan&) const = default;
};

/// Whether the trainable parameters lie on servers: then the ranks are their workers.
bool is_remote(const StepPlan& p);
/// Whether workers of servers train copies of their own between their pulls and pushes.
bool has_worker_copies(const StepPlan& p);
/// Whether servers average what workers train: parameters and the optimizer's state.
bool averages_on_servers(const StepPlan& p);
/// The longest delay of an action; 0: steps do not overlap.
int longest_delay(const StepPlan& p);
/// The actions in the order in which one batch passes them: in that of their delays, then of the
/// plan. An agree counts as having the longest delay.
std::vector<std::size_t> order_of_batch(const StepPlan& p);
/// Whether backwards are in two parts.
bool has_backward_parts(const StepPlan& p);
/// Whether the ranks' parameters differ between steps: then they are averaged now and then, or
/// exchange with a centre.
bool is_diverged(const StepPlan& p);
/// Whether servers hold a centre with which the ranks exchange.
bool has_centre(const StepPlan& p);
/// Whether the ranks are workers of servers, with parameters or a centre there: then no action
/// makes workers wait for each other.
bool has_servers(const StepPlan& p);

std::string_view to_string(Placement placement);
std::string_view to_string(ActionKind kind);
/// "all_gather 4-7 over shard async", "average 0-5 over dp every 8", as in the text form.
std::string to_text(const Action& a);
/// The action with its number, and with "block0" or "block0.weight..block1.bias" for the range; for
/// messages.
std::string describe(const StepPlan& p, std::size_t action);

/// Versioned text form, one line per segment, parameter and action; parse_step_plan is the inverse.
/// Comments have the names of the ranges.
std::string to_text(const StepPlan& p);
/// Inverse of to_text; kBadPlan with line and column for anything else. Checks only syntax and
/// numbers; analysis::verify checks that the plan is correct.
Result<StepPlan> parse_step_plan(std::string_view text);
std::uint64_t hash(const StepPlan& p);

}  // namespace stormo::plan
