#include <stormo/analysis/verify/step_form.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <stormo/analysis/verify/step_remote.h>
#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::Placement;
using plan::StepPlan;

using plan::bad;

Status check_mesh(const plan::Mesh& mesh) {
  std::set<std::string> names;
  std::int64_t size = 1;
  for (const plan::Axis& axis : mesh.axes) {
    if (axis.name.empty()) return bad("mesh: an axis has no name");
    if (!names.insert(axis.name).second)
      return bad("mesh: axis '" + axis.name + "' is there twice");
    if (axis.size < 1) return bad("mesh: axis '" + axis.name + "' has no ranks");
    size *= axis.size;
    if (size > plan::kMaxRanks) {
      return bad("mesh: more than " + std::to_string(plan::kMaxRanks) + " ranks");
    }
  }
  return {};
}

/// Whether `elements` are blocks of equal units.
bool is_whole(const plan::Split& split, std::int64_t elements) {
  if (split.dim < 0 || split.blocks < 1 || split.units < 0) return false;
  return split.units == 0 ||
         (elements % split.units == 0 && elements / split.units % split.blocks == 0);
}

Status check_model(const plan::ModelShape& model) {
  if (model.segments.empty()) return bad("the model has no segments");
  if (num_parameters(model) == 0) return bad("the model has no parameters");
  int before = 0;  // parameters of the segments before
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const plan::SegmentShape& s = model.segments[i];
    const std::string who = "segment " + std::to_string(i);
    if (s.flops_per_sample < 0) return bad(who + " has a negative size");
    for (const plan::ParameterShape& p : s.parameters) {
      if (p.elsewhere) {
        return bad(who + ": parameter '" + p.name + "' is elsewhere: this is the part of one rank");
      }
      if (p.elements < 0) return bad(who + ": parameter '" + p.name + "' has a negative size");
      if (!is_whole(p.split, p.elements)) {
        return bad(who + ": parameter '" + p.name + "' does not consist of " +
                   std::to_string(p.split.blocks) + " times " + std::to_string(p.split.units) +
                   " equal units");
      }
    }
    for (const int b : s.borrowed) {
      if (b < 0 || b >= before) {
        return bad(who + " borrows parameter " + std::to_string(b) +
                   ", which no segment before it has");
      }
    }
    before += static_cast<int>(s.parameters.size());
  }
  return {};
}

/// All state is placed so over one axis, if that is there, and nothing over another.
Status only_over(const StepPlan& p, Placement placement, const char* axis) {
  const int at = p.mesh.find(axis);
  for (const auto* rest : {&p.parameters, &p.frozen, &p.optimizer_state}) {
    for (std::size_t i = 0; i < rest->size(); ++i) {
      if (((*rest)[i] == placement) == (static_cast<int>(i) == at)) continue;
      return bad("state: all is " + std::string(to_string(placement)) + " over '" + axis +
                 "', and nothing over another axis");
    }
  }
  return {};
}

Status replicated_over(const StepPlan& p, const std::string& axis) {
  for (const auto* rest : {&p.parameters, &p.frozen, &p.optimizer_state}) {
    if ((*rest)[at(p.mesh.find(axis))] == Placement::kReplicate) continue;
    return bad("state: all is replicated over '" + axis + "'");
  }
  return {};
}

/// Every stage has segments, and what is staged is staged over their axis.
Status check_stages(const StepPlan& p) {
  const int stages = num_stages(p.mesh);
  std::vector<int> segments(at(stages));
  for (std::size_t i = 0; i < p.model.segments.size(); ++i) {
    const int stage = p.model.segments[i].stage;
    if (stage < 0 || stage >= stages) {
      return bad("segment " + std::to_string(i) + " is of stage " + std::to_string(stage) +
                 ", but the mesh has " + std::to_string(stages) + " over '" + plan::kStageAxis +
                 "'");
    }
    ++segments[at(stage)];
  }
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s] == 0) return bad("stage " + std::to_string(s) + " has no segments");
  }
  return only_over(p, Placement::kStaged, plan::kStageAxis);
}

/// Where counts are stated, there is one for each rank, and together they are all units.
Status check_counts(const plan::ParameterShape& p, int slices) {
  if (p.split.counts.empty() || counts_fit(p.split, slices)) return {};
  return bad("parameter '" + p.name + "' has counts that do not give its " +
             std::to_string(p.split.units) + " units to the " + std::to_string(slices) +
             " ranks of '" + plan::kTensorAxis + "'");
}

/// What ranks of a graph send each other goes from one of them to another one.
Status check_states(const plan::SegmentShape& s, int slices) {
  for (const std::vector<plan::StateCrossing>& exchange : s.state_crossings) {
    std::set<std::pair<int, int>> pairs;
    for (const plan::StateCrossing& c : exchange) {
      const bool are_there = std::min(c.from, c.to) >= 0 && std::max(c.from, c.to) < slices;
      if (are_there && c.from != c.to && c.elements >= 1 && pairs.insert({c.from, c.to}).second) {
        continue;
      }
      return bad("segment '" + s.name + "' has states that go from rank " + std::to_string(c.from) +
                 " to rank " + std::to_string(c.to) + " of '" + plan::kTensorAxis +
                 "', which are no two of its " + std::to_string(slices) +
                 " ranks, or a pair that is there twice");
    }
    if (exchange.empty()) return bad("segment '" + s.name + "' has an exchange without states");
  }
  return {};
}

/// Each rank that computes layers together with others has something of what they split, where no
/// counts say more.
Status check_slices(const StepPlan& p) {
  const int slices = plan::slice_of(p.mesh, 0).parts;
  const bool has_axis = p.mesh.find(plan::kTensorAxis) >= 0;
  for (const plan::SegmentShape& s : p.model.segments) {
    if (s.heads % slices != 0) {
      return bad("segment '" + s.name + "' has " + std::to_string(s.heads) + " heads, which " +
                 std::to_string(slices) + " ranks of '" + plan::kTensorAxis +
                 "' do not divide evenly");
    }
    if (has_axis) STORMO_RETURN_IF_ERROR(check_states(s, slices));
    for (const plan::ParameterShape& q : s.parameters) {
      if (has_axis) STORMO_RETURN_IF_ERROR(check_counts(q, slices));
      if (!q.split.counts.empty() || q.split.units == 0 || q.split.units >= slices) continue;
      return bad("parameter '" + q.name + "' has " + std::to_string(q.split.units) +
                 " units, fewer than the " + std::to_string(slices) + " ranks of '" +
                 plan::kTensorAxis + "'");
    }
  }
  return only_over(p, Placement::kSplit, plan::kTensorAxis);
}

/// Each rank that has positions of a sample has two equal chunks of them, and replicates the model.
Status check_positions(const StepPlan& p) {
  const int axis = p.mesh.find(plan::kContextAxis);
  if (axis < 0) {
    if (p.attention == plan::AttentionForm::kRing) return {};
    return bad(std::string("attention '") + std::string(to_string(p.attention)) +
               "' needs an axis '" + plan::kContextAxis + "'");
  }
  const int ranks = p.mesh.axes[at(axis)].size;
  const int together = ranks * plan::slice_of(p.mesh, 0).parts;
  for (const plan::SegmentShape& s : p.model.segments) {
    const std::string who = "segment '" + s.name + "' has " + std::to_string(s.positions) +
                            " positions, which are not 2 equal chunks for each of the " +
                            std::to_string(ranks) + " ranks of '" + plan::kContextAxis + "'";
    if (s.positions < 1 || s.positions % (2 * ranks) != 0) return bad(who);
    if (s.positions != p.model.segments.front().positions) {
      return bad("segment '" + s.name + "' has " + std::to_string(s.positions) +
                 " positions, and the first segment " +
                 std::to_string(p.model.segments.front().positions));
    }
    const bool has_heads = s.keys == 0 || s.heads > 0;
    if (p.attention != plan::AttentionForm::kHeads || (has_heads && s.heads % together == 0)) {
      continue;
    }
    return bad("segment '" + s.name + "' has " + std::to_string(s.heads) + " heads, which " +
               std::to_string(together) +
               " ranks do not divide evenly; use attention 'ring', or fewer ranks");
  }
  return replicated_over(p, plan::kContextAxis);
}

/// Every part of every map has a place.
Status check_windows(const plan::SegmentShape& s, const std::vector<plan::Window>& windows,
                     int rows, int columns) {
  for (const plan::Window& w : windows) {
    const bool is_window =
        w.channels >= 1 && w.kernel >= 1 && w.stride >= 1 && w.padding >= 0 && w.padding < w.kernel;
    if (is_window && std::min(w.height, rows_out(w, w.height)) >= rows &&
        std::min(w.width, rows_out(w, w.width)) >= columns) {
      continue;
    }
    return bad("segment '" + s.name + "' reads a map of " + std::to_string(w.height) + " x " +
               std::to_string(w.width) + " places, of which " + std::to_string(rows) + " x " +
               std::to_string(columns) + " ranks have no part each");
  }
  return {};
}

/// Ranks have parts of the places up to the one segment that adds up over them, and replicate the
/// model.
Status check_places(const StepPlan& p) {
  const int rows = plan::rows_part(p.mesh, 0).parts, columns = plan::columns_part(p.mesh, 0).parts;
  for (const plan::SegmentShape& s : p.model.segments) {
    STORMO_RETURN_IF_ERROR(check_windows(s, s.windows, rows, columns));
    STORMO_RETURN_IF_ERROR(
        check_windows(s, s.split_windows, plan::slice_of(p.mesh, 0).parts, /*columns=*/1));
  }
  const std::vector<std::string> axes = plan::place_axes(p.mesh);
  if (axes.empty()) return {};
  const auto& segments = p.model.segments;
  const auto sums =
      std::ranges::count_if(segments, [](const plan::SegmentShape& s) { return s.place_sum != 0; });
  if (sums != 1) {
    return bad(std::to_string(sums) + " segments have a place_sum; with an axis '" + axes.front() +
               "' one has");
  }
  if (segments.front().windows.empty()) {
    return bad("the first segment has no window, so nothing says what parts samples have");
  }
  for (std::size_t i = at(segments_of_places(p.model)); i < segments.size(); ++i) {
    if (segments[i].windows.empty() && segments[i].norms.empty()) continue;
    return bad("segment '" + segments[i].name +
               "' has windows or norms, but no ranks have parts of its places");
  }
  for (const std::string& axis : axes) STORMO_RETURN_IF_ERROR(replicated_over(p, axis));
  return {};
}

/// The ranks of kTensorAxis have equal parts of the positions, from where the first split ends to
/// where the last one begins.
Status check_sequence(const StepPlan& p) {
  if (!p.sequence_parallel) return {};
  if (p.mesh.find(plan::kTensorAxis) < 0) {
    return bad(std::string("sequence_parallel needs an axis '") + plan::kTensorAxis + "'");
  }
  const int ranks = plan::slice_of(p.mesh, 0).parts * plan::context_part(p.mesh, 0).parts;
  const auto& segments = p.model.segments;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const plan::SegmentShape& s = segments[i];
    const std::string who = "segment '" + s.name + "' ";
    if (s.positions < 1 || s.positions % ranks != 0) {
      return bad(who + "has " + std::to_string(s.positions) + " positions, which " +
                 std::to_string(ranks) + " ranks do not divide evenly (sequence_parallel)");
    }
    const bool comes_whole = i == 0, goes_whole = i + 1 == segments.size();
    if (s.sums.backward.size() + (goes_whole ? 0 : 1) !=
        s.sums.forward.size() + (comes_whole ? 0 : 1)) {
      return bad(who + "begins " + std::to_string(s.sums.backward.size()) + " splits and ends " +
                 std::to_string(s.sums.forward.size()) +
                 ". With sequence_parallel the first segment ends one that it does not begin, the "
                 "last one begins one that it does not end, and all others end what they begin");
    }
    if (s.keys > 0 && s.heads == 0) {
      return bad(who +
                 "has attention whose heads are not split, so it needs all positions "
                 "(sequence_parallel)");
    }
  }
  if (segments.back().splits_output) return {};
  return bad("sequence_parallel needs an output in parts of the last segment, '" +
             segments.back().name + "'");
}

/// One rank of kTensorAxis has the targets: it needs the whole output for the loss, and sends that
/// with the gradient of the output.
Status check_labels(const StepPlan& p) {
  if (p.labels < 0) return {};
  const int ranks = plan::slice_of(p.mesh, 0).parts;
  if (p.labels >= ranks || p.mesh.find(plan::kTensorAxis) < 0) {
    return bad("labels " + std::to_string(p.labels) + " is no rank of an axis '" +
               plan::kTensorAxis + "'");
  }
  const plan::SegmentShape& last = p.model.segments.back();
  if (last.splits_output) {
    return bad("with labels the last segment, '" + last.name +
               "', cannot have an output in parts: the rank with the labels needs the whole");
  }
  if (!last.sums.loss.empty()) return {};
  return bad("with labels the last segment, '" + last.name +
             "', must say how much is sent for the loss (loss_sums)");
}

Status check_rest(const StepPlan& p) {
  const auto check = [&](const std::vector<Placement>& rest, const char* what) -> Status {
    if (rest.size() != p.mesh.axes.size()) {
      return bad(std::string("state ") + what + ": " + std::to_string(rest.size()) +
                 " placements for a mesh of " + std::to_string(p.mesh.axes.size()) + " axes");
    }
    for (const Placement placement : rest) {
      if (placement == Placement::kPartial) {
        return bad(std::string("state ") + what + ": " + std::string(to_string(placement)) +
                   " is nothing to begin a step with");
      }
    }
    return {};
  };
  STORMO_RETURN_IF_ERROR(check(p.parameters, "parameters"));
  STORMO_RETURN_IF_ERROR(check(p.frozen, "frozen"));
  STORMO_RETURN_IF_ERROR(check(p.optimizer_state, "optimizer"));
  STORMO_RETURN_IF_ERROR(check_stages(p));
  STORMO_RETURN_IF_ERROR(check_slices(p));
  STORMO_RETURN_IF_ERROR(check_positions(p));
  STORMO_RETURN_IF_ERROR(check_places(p));
  STORMO_RETURN_IF_ERROR(check_sequence(p));
  STORMO_RETURN_IF_ERROR(check_labels(p));
  STORMO_RETURN_IF_ERROR(check_remote_state(p));
  for (std::size_t i = 0; i < p.parameters.size(); ++i) {
    const std::string axis = " over " + p.mesh.axes[i].name;
    if (p.optimizer_state[i] == Placement::kShared) {
      return bad("state optimizer: shared" + axis + "; each rank has its own, or a part");
    }
    if (p.parameters[i] == Placement::kRemote || p.parameters[i] == Placement::kStaged ||
        p.parameters[i] == Placement::kSplit) {
      continue;
    }
    const bool diverged = p.parameters[i] == Placement::kDiverged;
    if (diverged != (p.optimizer_state[i] == Placement::kDiverged) ||
        p.frozen[i] == Placement::kDiverged) {
      return bad("state: diverged" + axis + " are the parameters and the optimizer's state, or " +
                 "neither; frozen parameters never");
    }
    if (diverged) continue;
    if (p.parameters[i] != Placement::kReplicate && p.optimizer_state[i] != Placement::kShard) {
      return bad("state parameters: " + std::string(to_string(p.parameters[i])) + axis +
                 ", where the optimizer's state is whole: more than one rank would update them");
    }
  }
  return {};
}

/// The loss of an output of which each rank has a part, or of targets that one rank has.
Status check_loss(const StepPlan& p, const Action& a) {
  std::vector<std::string> over;
  const bool in_parts = p.model.segments.back().splits_output || p.labels >= 0;
  if (in_parts && p.mesh.find(plan::kTensorAxis) >= 0) over.emplace_back(plan::kTensorAxis);
  if (a.axes == over) return {};
  if (over.empty()) return bad("takes no axis: each rank has the whole output and the targets");
  return bad("needs axis '" + over.front() + "', " +
             (p.labels >= 0 ? "of which one rank has the targets"
                            : "whose ranks have parts of the output"));
}

Status check_axes(const StepPlan& p, const Action& a) {
  using enum plan::AxesOf;
  const plan::AxesOf takes = row_of(a.kind).axes;
  if (takes == kOfOutput) return check_loss(p, a);
  const bool needed = takes == kOne || takes == kOneOrMore;
  if (a.axes.empty()) return needed ? bad("needs an axis") : Status();
  if (takes == kNone) return bad("takes no axis");
  if (takes == kOne && a.axes.size() > 1) return bad("takes one axis");
  std::set<std::string> seen;
  for (const std::string& axis : a.axes) {
    if (p.mesh.find(axis) < 0) return bad("axis '" + axis + "' is not in the mesh");
    const bool cuts_model = axis == plan::kStageAxis || axis == plan::kTensorAxis;
    const bool adds_norms =
        row_of(a.kind).makes.has(plan::Value::kNorm) ||
        (row_of(a.kind).makes.has(plan::Value::kUpdated) && axis == plan::kTensorAxis);
    if (cuts_model && !adds_norms) {
      return bad("the ranks of '" + axis +
                 "' have different parts of the model, and reduce nothing together");
    }
    if (!seen.insert(axis).second) return bad("names axis '" + axis + "' twice");
  }
  return {};
}

/// What is computed together is computed by one stage, and what moves, moves between two.
Status check_segments(const StepPlan& p, const Action& a) {
  if (row_of(a.kind).moves()) {
    if (a.range.size() != 2) return bad("moves between two segments that follow each other");
    return is_boundary(p.model, a.range.first) ? Status() : bad("moves inside of one stage");
  }
  for (int s = a.range.first; s < a.range.last; ++s) {
    if (!is_boundary(p.model, s)) continue;
    return bad("segments " + std::to_string(s) + " and " + std::to_string(s + 1) +
               " are of different stages");
  }
  return {};
}

Status check_shape(const StepPlan& p, bool centre, const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  const bool segments = row.range == plan::RangeOf::kSegments;
  const auto count =
      segments ? p.model.segments.size() : static_cast<std::size_t>(num_parameters(p.model));
  if (row.range == plan::RangeOf::kNothing) {
    if (a.range != plan::Range{}) return bad("takes no range");
  } else if (a.range.first < 0 || a.range.first > a.range.last || at(a.range.last) >= count) {
    return bad(std::string("has ") + (segments ? "segments " : "parameters ") +
               std::to_string(a.range.first) + "-" + std::to_string(a.range.last) +
               ", but the model has " + std::to_string(count));
  }
  if (segments) STORMO_RETURN_IF_ERROR(check_segments(p, a));
  if (row.places(plan::Value::kGradients, Placement::kStaged) && a.range.size() > 1)
    return bad("takes one parameter");
  const int most = row.micro_batch ? p.micro_batches : 1;
  if (a.micro_batch < 0 || a.micro_batch >= most) {
    return bad("is of micro-batch " + std::to_string(a.micro_batch) + ", but there are " +
               std::to_string(most));
  }
  if (a.asynchronous && !row.asynchronous) return bad("cannot be asynchronous");
  const bool may_be_delayed = row.delayed && !a.asynchronous;
  if (a.delay < 0 || a.delay > (may_be_delayed ? plan::kMaxDelay : 0)) {
    return bad("cannot come " + std::to_string(a.delay) + " step(s) after the load of its batch");
  }
  if (!row.reduces && (a.codec != plan::Codec::kNone || !a.algorithm.empty())) {
    return bad("adds up no gradients, and has neither codec nor algorithm");
  }
  if (row_of(a.codec).in_blocks() && p.mesh.find(plan::kTensorAxis) >= 0) {
    return bad("rounds in codec " + std::string(to_string(a.codec)) +
               " what the ranks of 'tp' have as a whole together with their slices, so that their "
               "copies would differ");
  }
  if (row_of(a.codec).in_blocks() && p.scaled_loss) {
    return bad("keeps what codec " + std::string(to_string(a.codec)) +
               " lost in units of the scaled loss, and the scale changes from step to step");
  }
  if (row_of(a.codec).in_blocks() && !a.algorithm.empty()) {
    return bad("sums in codec " + std::string(to_string(a.codec)) +
               " have a schedule of their own, and take no algorithm");
  }
  const bool each_step = row.period == plan::Period::kEachStep;
  if (a.every < 1 || a.every > (each_step ? 1 : plan::kMaxPeriod)) {
    return bad("cannot be for every " + std::to_string(a.every) + " steps");
  }
  STORMO_RETURN_IF_ERROR(check_axes(p, a));
  return check_remote_action(p, centre, a);
}

}  // namespace

Status check_form(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(check_mesh(p.mesh));
  STORMO_RETURN_IF_ERROR(check_model(p.model));
  STORMO_RETURN_IF_ERROR(check_rest(p));
  if (p.micro_batches < 1) return bad("there are no micro-batches");
  const bool centre = has_centre(p);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Status st = check_shape(p, centre, p.actions[i]);
    if (!st.ok()) return st.within(describe(p, i));
  }
  return {};
}

bool counts_fit(const plan::Split& split, int parts) {
  std::int64_t left = split.units;
  for (const std::int64_t n : split.counts) {
    if (n < 0 || n > left) return false;
    left -= n;
  }
  return left == 0 && std::ssize(split.counts) == parts;
}

}  // namespace stormo::analysis
