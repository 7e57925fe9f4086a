#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/codec/codec.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::plan {

/// The kind of an action of a training step. An action uses the parameters, gradients and optimizer
/// state of its range. What is true of a kind in every plan stands in its row, see ActionRow;
/// analysis/verify/step_verify.h lists the inputs and outputs of all kinds.
enum class ActionKind : std::uint8_t {
  kLoad,  ///< loads the local batch: this rank's share of the global batch
  /// Chooses the parts of parameters that this step trains: its gradients, reductions and updates
  /// are of these alone (StepPlan::chosen).
  kChoose,
  kSumWeights,  ///< adds up the weights of all ranks' gradients; with servers of those of a worker
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
  kAllReduceTied,     ///< of parameters that several stages read: from terms to their sum
  /// Of those parameters of the range that the ranks of kTensorAxis do not split, where these have
  /// parts of the positions (StepPlan::sequence_parallel): from terms to their sum.
  kAllReduceUnsplit,
  /// From this rank's gradients to its estimate of the mean over the ranks of `axes`, which it
  /// makes of these gradients, those of the step before, and its neighbours' estimates.
  kTrack,
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
  /// As kAverage, of the parameters alone: each rank keeps its own state of the optimizer. An
  /// asynchronous one sends what it finds, and changes nothing: its averages go to an outer update
  /// some steps later.
  kAverageParameters,
  /// One slot of the optimizer's state (Action::slot) that diverged over the ranks of `axes`, and
  /// how many steps its rule has counted: to their averages, weighted by the samples of each rank
  /// since the average of this slot before.
  kAverageState,
  /// A step of the outer optimizer, which each rank does alike: the averages are replaced by
  /// parameters between those with which the period began and beyond the averages. If the average
  /// was asynchronous, ranks have gone on meanwhile: see Action::mixing. Nothing is done where no
  /// average is under way.
  kOuterUpdate,
  /// Of parameters that diverged over the ranks of `axes`, each of which is a worker by itself:
  /// this worker's values and the centre, which servers hold, move towards each other.
  kElasticAverage,
  /// Of parameters that diverged over the ranks of `axes`: to weighted means with those of a rank's
  /// neighbours (plan/mixing). The optimizer's state stays. An asynchronous one sends what it
  /// finds, and its update begins with the means.
  kMix,
  /// Of parameters and optimizer state that diverged over the ranks of `axes`: each rank judges its
  /// own and those of its neighbours (plan/mixing), and goes on with the best.
  kTournament,
  /// Of parameters that diverged over the ranks of `axes`: each rank keeps copies of those of its
  /// neighbours (plan/mixing), which say after how many updates they were made.
  kExchangeModels,
  // factors of the gradients
  kNorm,     ///< their 2-norm, added up over the ranks of `axes`
  kUnscale,  ///< undoes the loss scale; all ranks learn whether a gradient overflowed
  kClip,     ///< scales gradients down if their norm is too large
  /// All ranks learn that each of them has all reduced gradients, and that these are equal: nothing
  /// changes parameters before. Who has passed it knows that whoever is left can do the update.
  kCommit,
  kUpdate,  ///< the optimizer's step, on the part of the range that this rank owns
  /// All ranks, with servers those of a worker, learn the loss of the step, and whether any of them
  /// has to stop.
  kAgree,
};
inline constexpr std::size_t kNumActionKinds = 38;  // checked where the rows are

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
std::string_view to_string(Placement placement);

/// What the range of an action refers to.
enum class RangeOf : std::uint8_t { kNothing, kSegments, kParameters };

/// How many mesh axes an action names.
enum class AxesOf : std::uint8_t {
  kNone,
  kOne,
  kOneOrMore,
  kAny,       ///< none or more
  kOfOutput,  ///< kTensorAxis where its ranks have parts of the output or of the targets, else none
};

/// In which steps an action is done.
enum class Period : std::uint8_t {
  kEachStep,
  kFirstOfPeriod,  ///< may be for one of every n steps, the first
  kLastOfPeriod,   ///< the last
};

/// Whose values an action works on. Where workers exchange with servers, each of them goes on for
/// itself, so that only some actions are possible.
enum class Scope : std::uint8_t {
  kRank,     ///< of the rank alone, but for what its segments exchange inside (SegmentShape)
  kReplica,  ///< of ranks of one replica of the model, between which a value goes
  kRanks,    ///< that ranks hold together
  kServers,  ///< of one worker, and those of the servers
};

/// A value that an action makes, and later ones need. For the first four these wait where they are
/// on their way.
enum class Value : std::uint8_t {
  kOutput,          ///< of a segment, on the stage that goes on with it
  kOutputGradient,  ///< the gradient of that, on the stage that made it
  kParameters,      ///< whole, as segments read them
  kGradients,       ///< of parameters, reduced
  kBatch,           ///< of a rank
  kChosen,          ///< which parts of parameters the step trains
  kActivations,     ///< what a backward needs of the forward of its range
  kLoss,            ///< of a micro-batch
  kWeights,         ///< of all ranks' gradients, added up
  kTerms,           ///< of a reduction to parts; who needs them releases them
  kUnused,          ///< which gradients no rank has
  kNorm,            ///< of all gradients
  kUnscaled,        ///< the factor of gradients that undoes the loss scale
  kClipped,         ///< the factor that makes their norm small enough
  kCommitted,       ///< that all ranks have the gradients
  kMixed,           ///< parameters, with those of neighbours
  kAveraged,        ///< averages of parameters, for an outer update
  kUpdated,         ///< parameters and state after the optimizer's step
};
class Values {
 public:
  constexpr Values() = default;
  constexpr Values(std::initializer_list<Value> all) {
    for (const Value v : all) add(v);
  }
  constexpr bool has(Value v) const { return (bits_ & bit(v)) != 0; }
  constexpr void add(Value v) { bits_ |= bit(v); }

 private:
  static constexpr std::uint32_t bit(Value v) { return 1u << static_cast<unsigned>(v); }
  std::uint32_t bits_ = 0;
};

/// How an action places parameters or gradients of its range anew, over its axes.
struct Change {
  Value of;
  Placement from, to;
  bool operator==(const Change&) const = default;
};

/// Over which ranks an action adds up its Numbers. Where workers exchange with servers these are
/// those of one worker, and for Scope::kRank there are none.
enum class Over : std::uint8_t { kItsAxes, kDataAxes, kAllAxes };

/// That ranks compare in a kCommit: hashes of gradients and of states, each twice, and requests to
/// stop and to change the members.
inline constexpr int kCommittedNumbers = 6;
/// That ranks add up beside what they agree on, where their parameters diverge: the squares of
/// their distances from the average, and the time since the one before.
inline constexpr int kAveragedNumbers = 2;

/// What ranks add up beside parameters, gradients and activations.
struct Numbers {
  int count = 0;
  DType dtype = DType::kFloat64;
  bool of_each_parameter = false;  ///< so many of each trainable parameter of the range
  Over over = Over::kItsAxes;
};

/// What is true of an action of one kind in every plan.
struct ActionRow {
  ActionKind kind;
  std::string_view word;  ///< in the text form
  RangeOf range = RangeOf::kNothing;
  AxesOf axes = AxesOf::kNone;
  Period period = Period::kEachStep;
  Scope scope = Scope::kRank;
  bool micro_batch = false;         ///< works on one micro-batch
  bool adds_gradients = false;      ///< adds to the gradients of parameters
  bool asynchronous = false;        ///< may be: see Action::asynchronous
  bool delayed = false;             ///< may be: see Action::delay
  bool staggered = false;           ///< may be: see Action::offset
  bool reduces = false;             ///< adds up gradients: see Action::algorithm
  bool changes_parameters = false;  ///< of the module: whoever saves them has to be done
  bool all_batches = false;         ///< is of all batches under way, and finishes them
  bool barrier = false;             ///< ranks of a host wait for each other
  bool averages_state = false;      ///< averages the optimizer's state, too
  bool averages_slot = false;       ///< averages a slot of it, and nothing else: see Action::slot
  bool selects = false;             ///< takes the best values, with the optimizer's state
  bool copies = false;              ///< keeps copies of values that it gets
  Values needs = {};                ///< before it begins: of its range, or of all if it has none
  Values needs_at_end = {};         ///< before it is over
  Values makes = {};
  std::optional<Change> change = {};
  Numbers numbers = {};
  std::uint32_t color = 0xc9c9c9;  ///< in pictures of a step: red, green, blue

  /// Whether it sends a tensor from one stage to another.
  constexpr bool moves() const {
    return makes.has(Value::kOutput) || makes.has(Value::kOutputGradient);
  }
  /// Whether it computes the outputs of its segments, for the first time or again.
  constexpr bool runs_forward() const { return makes.has(Value::kActivations); }
  constexpr bool recomputes() const { return runs_forward() && !needs.has(Value::kOutput); }
  /// Whether it computes the gradient of the input of its segments.
  constexpr bool passes_gradient() const { return needs.has(Value::kOutputGradient); }
  constexpr bool is(Change c) const { return change == c; }
  /// Whether it averages parameters that diverged.
  constexpr bool averages() const {
    return is({Value::kParameters, Placement::kDiverged, Placement::kReplicate});
  }
  /// Whether what it sends may be in a codec: gradients, or what a period has changed.
  constexpr bool has_codec() const { return reduces || (averages() && staggered); }
  /// Whether it makes other parameters of their averages.
  constexpr bool outer_updates() const {
    return is({Value::kParameters, Placement::kReplicate, Placement::kReplicate});
  }
  /// Whether neighbours send each other parameters, or estimates of gradients.
  constexpr bool meets_neighbours() const {
    return change && change->to == Placement::kDiverged && change->from != Placement::kRemote;
  }
  /// Whether it takes weighted means with them.
  constexpr bool mixes() const { return meets_neighbours() && !of_population(); }
  /// Whether ranks are members of a population, whose models never become equal.
  constexpr bool of_population() const { return selects || copies; }
  constexpr bool tracks() const { return mixes() && change->of == Value::kGradients; }
  constexpr bool places(Value of, Placement to) const {
    return change && change->of == of && change->to == to;
  }
  /// Whether it takes values from this placement.
  constexpr bool takes_from(Placement from) const { return change && change->from == from; }
};

/// One for each kind, in the order of ActionKind.
std::span<const ActionRow, kNumActionKinds> action_rows();
const ActionRow& row_of(ActionKind kind);
std::string_view to_string(ActionKind kind);

struct Action {
  ActionKind kind = {};
  Range range = {};     ///< of what: ActionRow::range
  int micro_batch = 0;  ///< of computations
  /// Of which batch: 0 of the one that the step loads, n of the one loaded n steps before. A step
  /// leaves out what is of a batch before the first, or before the last agree.
  int delay = 0;
  std::vector<std::string> axes = {};  ///< mesh axes over whose ranks a collective runs
  /// Started on the communication lane: later actions run meanwhile, until one needs the result.
  bool asynchronous = false;
  /// The action is for one of every n steps, see ActionRow::period. Those for the last one are done
  /// also in steps after which all ranks do something together: before an evaluation, a save or the
  /// end.
  int every = 1;
  /// Of one for every n steps: so many steps later than the others, below n.
  int offset = 0;
  /// Of an outer update whose average was asynchronous: the share of its own parameters that a rank
  /// keeps; the rest are those of the outer optimizer. 0 to 1.
  double mixing = 0;
  /// Of an average of the optimizer's state: of which of its slots, below kMaxSlots; else -1.
  int slot = -1;
  /// Of a reduction: the form in which gradients travel. Of averages of parameters, before an outer
  /// update: the differences to those with which the period began travel, in this form.
  Codec codec = Codec::kNone;
  /// Of a reduction: the builder of its schedule, such as "ring_all_reduce", or "adasum", see
  /// plan/adasum.h; empty: the one that is fastest for its size, ranks and hosts. Where neighbours
  /// meet: the topology, see mixing_of().
  std::string algorithm = {};
  bool operator==(const Action&) const = default;
};

// What the row of its kind says of an action.
inline bool makes(const Action& a, Value v) { return row_of(a.kind).makes.has(v); }
inline bool places(const Action& a, Value of, Placement to) {
  return row_of(a.kind).places(of, to);
}

}  // namespace stormo::plan
