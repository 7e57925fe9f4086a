#include <stormo/plan/check/check.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/plan/adasum.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/check/adasum.h>
#include <stormo/plan/check/momentum.h>
#include <stormo/plan/check/shards.h>
#include <stormo/plan/gradient_matrix.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/plan/momentum.h>
#include <stormo/plan/project.h>
#include <stormo/plan/text/text.h>

namespace stormo::plan {
namespace {

// --- state ---------------------------------------------------------------------------------------

/// How all state is placed over an axis that cuts the model or its samples; so over no other axis
/// but where it is replicated.
struct Cut {
  const char* axis;
  Placement placed;
};
constexpr std::array<Cut, 5> kCuts = {{{kStageAxis, Placement::kStaged},
                                       {kTensorAxis, Placement::kSplit},
                                       {kContextAxis, Placement::kReplicate},
                                       {kRowsAxis, Placement::kReplicate},
                                       {kColumnsAxis, Placement::kReplicate}}};

Status check_cuts(const std::string& axis, const std::array<Placement, 3>& state) {
  for (const Cut& cut : kCuts) {
    const bool replicated = cut.placed == Placement::kReplicate;
    const auto so = std::ranges::count(state, cut.placed);
    if (axis == cut.axis ? so == std::ssize(state) : so == 0 || replicated) continue;
    return bad("state: all is ", replicated ? "replicated" : to_string(cut.placed), " over '",
               cut.axis, replicated ? "'" : "', and nothing over another axis");
  }
  return {};
}

/// Servers have trainable parameters and their state. Their workers are the first axis, and ranks
/// of a worker, which other replicas that train by themselves have, too.
Status check_remote(const StepPlan& p, std::size_t i) {
  const std::string& axis = p.mesh.axes[i].name;
  const bool remote = p.parameters[i] == Placement::kRemote;
  if (p.frozen[i] == Placement::kRemote) {
    return bad("state frozen: remote over ", axis, "; servers have only what they update");
  }
  if (remote != (p.optimizer_state[i] == Placement::kRemote)) {
    return bad("state ", remote ? "optimizer" : "parameters", ": not remote over ", axis,
               ", where the ", remote ? "parameters are" : "optimizer's state is",
               "; servers keep both");
  }
  const bool several = p.mesh.find(kWorkerAxis) >= 0;
  const std::size_t most = (several ? 2 : 1) + model_axes(p.mesh).size();
  if (remote && ((i > 0 && axis != kWorkerAxis) || p.mesh.axes.size() > most)) {
    return bad("state parameters: remote over ", axis,
               ", but the mesh has other axes; the workers are its only one");
  }
  if (!several) return {};
  using enum Placement;
  const std::array<std::vector<Placement>, 3> known = {
      {{kRemote, kRemote}, {kDiverged, kReplicate}, {kReplicate}}};
  const bool is_last = p.mesh.axes.back().name == kWorkerAxis;
  if (is_last && std::ranges::count(known, p.parameters) > 0) return {};
  return bad("state parameters: over the axis of workers and then '", kWorkerAxis,
             "', whose ranks are one, neither remote, nor diverged and then replicated");
}

/// Each parameter is updated by one owner, or each rank has its own.
Status check_owners(const StepPlan& p, std::size_t i) {
  const std::string& axis = p.mesh.axes[i].name;
  const Placement parameters = p.parameters[i], state = p.optimizer_state[i];
  if (state == Placement::kShared) {
    return bad("state optimizer: shared over ", axis, "; each rank has its own, or a part");
  }
  for (const Placement own : {Placement::kRemote, Placement::kStaged, Placement::kSplit}) {
    if (parameters == own) return {};
  }
  const bool diverged = parameters == Placement::kDiverged;
  if (diverged != (state == Placement::kDiverged) || p.frozen[i] == Placement::kDiverged) {
    return bad(
        "state: diverged over ", axis,
        " are the parameters and the optimizer's state, or neither; frozen parameters never");
  }
  if (diverged || parameters == Placement::kReplicate || state == Placement::kShard) return {};
  return bad("state parameters: ", parameters, " over ", axis,
             ", where the optimizer's state is whole: more than one rank would update them");
}

Status check_state(const StepPlan& p) {
  const std::array<std::pair<const char*, const std::vector<Placement>*>, 3> all = {
      {{"parameters", &p.parameters}, {"frozen", &p.frozen}, {"optimizer", &p.optimizer_state}}};
  for (const auto& [what, placed] : all) {
    if (placed->size() != p.mesh.axes.size()) {
      return bad("state ", what, ": ", placed->size(), " placements for a mesh of ",
                 p.mesh.axes.size(), " axes");
    }
    if (std::ranges::count(*placed, Placement::kPartial) == 0) continue;
    return bad("state ", what, ": ", Placement::kPartial, " is nothing to begin a step with");
  }
  for (std::size_t i = 0; i < p.mesh.axes.size(); ++i) {
    STORMO_RETURN_IF_ERROR(
        check_cuts(p.mesh.axes[i].name, {p.parameters[i], p.frozen[i], p.optimizer_state[i]}));
    STORMO_RETURN_IF_ERROR(check_remote(p, i));
    STORMO_RETURN_IF_ERROR(check_owners(p, i));
  }
  return {};
}

// --- an action -----------------------------------------------------------------------------------

/// What is computed together is computed by one stage, and what moves, moves between two.
Status check_segments(const StepPlan& p, const Action& a) {
  if (row_of(a.kind).moves()) {
    if (a.range.size() != 2) return bad("moves between two segments that follow each other");
    return is_boundary(p.model, a.range.first) ? Status() : bad("moves inside of one stage");
  }
  for (int s = a.range.first; s < a.range.last; ++s) {
    if (!is_boundary(p.model, s)) continue;
    return bad("segments ", s, " and ", s + 1, " are of different stages");
  }
  return {};
}

Status check_range(const StepPlan& p, const Action& a) {
  const ActionRow& row = row_of(a.kind);
  if (row.range == RangeOf::kNothing) {
    return a.range == Range{} ? Status() : bad("takes no range");
  }
  const bool segments = row.range == RangeOf::kSegments;
  const Range all = segments ? all_segments(p.model) : all_parameters(p.model);
  if (a.range.first < 0 || a.range.first > a.range.last || a.range.last > all.last) {
    return bad("has ", segments ? "segments " : "parameters ", a.range.first, "-", a.range.last,
               ", but the model has ", all.size());
  }
  if (row.places(Value::kGradients, Placement::kStaged) && a.range.size() > 1) {
    return bad("takes one parameter");
  }
  return segments ? check_segments(p, a) : Status();
}

Status check_time(const StepPlan& p, const Action& a) {
  const ActionRow& row = row_of(a.kind);
  if (row.averages_slot ? a.slot < 0 || a.slot >= kMaxSlots : a.slot != -1) {
    return bad("cannot be of slot ", a.slot, " of the optimizer");
  }
  const int batches = row.micro_batch ? p.micro_batches : 1;
  if (a.micro_batch < 0 || a.micro_batch >= batches) {
    return bad("is of micro-batch ", a.micro_batch, ", but there are ", batches);
  }
  if (a.asynchronous && !row.asynchronous) return bad("cannot be asynchronous");
  if (a.delay < 0 || a.delay > (row.delayed && !a.asynchronous ? kMaxDelay : 0)) {
    return bad("cannot come ", a.delay, " step(s) after the load of its batch");
  }
  if (a.every < 1 || a.every > (row.period == Period::kEachStep ? 1 : kMaxPeriod)) {
    return bad("cannot be for every ", a.every, " steps");
  }
  if (a.offset < 0 || a.offset >= (row.staggered ? a.every : 1)) {
    return bad("cannot come ", a.offset, " steps later than others that are for every ", a.every,
               " steps");
  }
  if (a.mixing >= 0 && a.mixing <= (row.outer_updates() ? 1 : 0)) return {};
  std::string share;
  append_real(share, a.mixing);
  return bad("cannot keep a share of ", share, " of what a rank has");
}

/// Codecs round real numbers.
Status check_types(const StepPlan& p, const Action& a) {
  if (a.codec == Codec::kNone) return {};
  const auto shapes = flatten(p.model);
  for (int i = a.range.first; i <= a.range.last; ++i) {
    const ParameterShape& own = *shapes[static_cast<std::size_t>(i)];
    if (!own.trainable || is_floating(own.dtype)) continue;
    return bad("rounds in codec ", to_string(a.codec), " the gradients of '", own.name,
               "', which are whole numbers (", own.dtype, "); codecs take floating types");
  }
  return {};
}

/// The topology by which neighbours meet.
Status check_mixing(const StepPlan& p, const Action& a) {
  if (a.codec != Codec::kNone) return bad("sends values as they are, and has no codec");
  if (a.axes.size() != 1 || p.mesh.find(a.axes.front()) < 0) return {};  // see check_axes()
  const int ranks = p.mesh.axes[at(p.mesh.find(a.axes.front()))].size;
  const Status known = mixing_of(a.algorithm, ranks).status();
  return known.ok() ? Status()
                    : bad(row_of(a.kind).mixes() ? "mixes" : "meets", " by ", known.message());
}

/// Factors are of whole matrices, and some must be worth it.
Status check_factors(const StepPlan& p, const Action& a) {
  const int rank = a.codec.matrix_rank;
  if (!row_of(a.kind).reduces) {
    return bad("has codec ", to_string(a.codec), ", which is of gradients");
  }
  if (rank < 1) return bad("has codec ", to_string(a.codec), ", whose rank must be at least 1");
  const bool in_parts = std::ranges::any_of(p.actions, [](const Action& other) {
    return row_of(other.kind).places(Value::kGradients, Placement::kShard);
  });
  if (in_parts) {
    return bad("has codec ", to_string(a.codec),
               ", which is of whole matrices, but ranks have parts of gradients");
  }
  const bool any = std::ranges::any_of(flatten(p.model), [rank](const ParameterShape* s) {
    return s->trainable && !s->sparse && has_factors(matrix_of(*s), rank);
  });
  if (any) return {};
  return bad("has codec ", to_string(a.codec),
             ", but no gradient is a matrix (rows ...) of more than ", "2 x ", rank,
             " x (rows + columns) elements; take a smaller rank, or another codec");
}

Status check_codec(const StepPlan& p, const Action& a) {
  if (row_of(a.kind).meets_neighbours()) return check_mixing(p, a);
  const ActionRow& row = row_of(a.kind);
  if ((!row.has_codec() && a.codec != Codec::kNone) || (!row.reduces && !a.algorithm.empty())) {
    return bad("adds up no gradients, and has neither codec nor algorithm");
  }
  if (combines_by_adasum(a)) return check_adasum(p, a);
  STORMO_RETURN_IF_ERROR(check_types(p, a));
  if (row_of(a.codec).has_density && !(a.codec.density > 0 && a.codec.density <= 1)) {
    return bad("has codec ", to_string(a.codec), ", whose density must be above 0 and at most 1");
  }
  if (const auto correction = momentum_of(a)) {
    STORMO_RETURN_IF_ERROR(check_momentum(p, a, *correction));
  }
  if (!row_of(a.codec).encodes()) return {};
  if (row_of(a.codec).has_factors()) STORMO_RETURN_IF_ERROR(check_factors(p, a));
  if (p.mesh.find(kTensorAxis) >= 0) {
    return bad("rounds in codec ", to_string(a.codec),
               " what the ranks of 'tp' have as a whole together with their slices, so that their "
               "copies would differ");
  }
  if (p.scaled_loss && row_of(a.codec).error_feedback) {
    return bad("keeps what codec ", to_string(a.codec),
               " lost in units of the scaled loss, and the scale changes from step to step");
  }
  if (a.algorithm.empty() || momentum_of(a)) return {};
  return bad("sums in codec ", to_string(a.codec),
             " have a schedule of their own, and take no algorithm");
}

/// The loss of an output of which each rank has a part, or of targets that one rank has.
Status check_loss(const StepPlan& p, const Action& a) {
  const bool in_parts = p.model.segments.back().splits_output || p.labels >= 0;
  if (!in_parts || p.mesh.find(kTensorAxis) < 0) {
    if (a.axes.empty()) return {};
    return bad("takes no axis: each rank has the whole output and the targets");
  }
  if (a.axes == std::vector<std::string>{kTensorAxis}) return {};
  return bad(
      "needs axis '", kTensorAxis, "', ",
      p.labels >= 0 ? "of which one rank has the targets" : "whose ranks have parts of the output");
}

Status check_axes(const StepPlan& p, const Action& a) {
  const ActionRow& row = row_of(a.kind);
  const AxesOf takes = row.axes;
  if (takes == AxesOf::kOfOutput) return check_loss(p, a);
  if (a.axes.empty()) {
    return takes == AxesOf::kOne || takes == AxesOf::kOneOrMore ? bad("needs an axis") : Status();
  }
  if (takes == AxesOf::kNone) return bad("takes no axis");
  if (takes == AxesOf::kOne && a.axes.size() > 1) return bad("takes one axis");
  for (const std::string& axis : a.axes) {
    if (p.mesh.find(axis) < 0) return bad("axis '", axis, "' is not in the mesh");
    const bool adds_norms =
        row.makes.has(Value::kNorm) || (row.makes.has(Value::kUpdated) && axis == kTensorAxis);
    if ((axis == kStageAxis || axis == kTensorAxis) && !adds_norms) {
      return bad("the ranks of '", axis,
                 "' have different parts of the model, and reduce nothing together");
    }
    if (std::ranges::count(a.axes, axis) > 1) return bad("names axis '", axis, "' twice");
  }
  return {};
}

Status check(const StepPlan& p, bool centre, const Action& a) {
  STORMO_RETURN_IF_ERROR(check_range(p, a));
  STORMO_RETURN_IF_ERROR(check_time(p, a));
  STORMO_RETURN_IF_ERROR(check_codec(p, a));
  STORMO_RETURN_IF_ERROR(check_axes(p, a));
  return check_workers(p, centre, a);
}

}  // namespace

Status check(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(check(p.mesh));
  STORMO_RETURN_IF_ERROR(check(p.model));
  STORMO_RETURN_IF_ERROR(check_parts(p));
  STORMO_RETURN_IF_ERROR(check_state(p));
  if (p.micro_batches < 1) return bad("there are no micro-batches");
  STORMO_RETURN_IF_ERROR(check_shards(p));
  const bool centre = has_centre(p);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Status st = check(p, centre, p.actions[i]);
    if (!st.ok()) return st.within(describe(p, i));
  }
  return {};
}

}  // namespace stormo::plan
