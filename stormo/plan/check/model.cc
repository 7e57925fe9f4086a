#include <stormo/plan/check/check.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

/// Whether the elements of a parameter are blocks of equal units.
bool is_whole(const ParameterShape& p) {
  const Split& split = p.split;
  if (split.dim < 0 || split.blocks < 1 || split.units < 0) return false;
  return split.units == 0 ||
         (p.elements % split.units == 0 && p.elements / split.units % split.blocks == 0);
}

Status check(const ParameterShape& p) {
  if (p.elsewhere)
    return bad("parameter '", p.name, "' is elsewhere: this is the part of one rank");
  if (p.elements < 0) return bad("parameter '", p.name, "' has a negative size");
  if (p.rows < 0 || (p.rows > 0 && p.elements % p.rows != 0)) {
    return bad("parameter '", p.name, "' does not consist of ", p.rows, " equal rows");
  }
  if (is_whole(p)) return {};
  return bad("parameter '", p.name, "' does not consist of ", p.split.blocks, " times ",
             p.split.units, " equal units");
}

/// Every stage has segments.
Status check_stages(const StepPlan& p) {
  const int stages = num_stages(p.mesh);
  std::vector<bool> has_segments(at(stages));
  for (std::size_t i = 0; i < p.model.segments.size(); ++i) {
    const int stage = p.model.segments[i].stage;
    if (stage < 0 || stage >= stages) {
      return bad("segment ", i, " is of stage ", stage, ", but the mesh has ", stages, " over '",
                 kStageAxis, "'");
    }
    has_segments[at(stage)] = true;
  }
  const auto empty = std::ranges::find(has_segments, false);
  if (empty == has_segments.end()) return {};
  return bad("stage ", empty - has_segments.begin(), " has no segments");
}

/// What ranks of a graph send each other goes from one of them to another one.
Status check_states(const SegmentShape& s, int slices) {
  for (const std::vector<StateCrossing>& exchange : s.state_crossings) {
    if (exchange.empty()) return bad("segment '", s.name, "' has an exchange without states");
    std::set<std::pair<int, int>> pairs;
    for (const StateCrossing& c : exchange) {
      const auto [low, high] = std::minmax(c.from, c.to);
      const bool are_two = low >= 0 && low < high && high < slices;
      if (are_two && c.elements >= 1 && pairs.insert({c.from, c.to}).second) continue;
      return bad("segment '", s.name, "' has states that go from rank ", c.from, " to rank ", c.to,
                 " of '", kTensorAxis, "', which are no two of its ", slices,
                 " ranks, or a pair that is there twice");
    }
  }
  return {};
}

/// Each rank has units, or as many as the counts give it: maybe none.
Status check_slices(const ParameterShape& p, int slices) {
  if (p.split.counts.empty()) {
    if (p.split.units == 0 || p.split.units >= slices) return {};
    return bad("parameter '", p.name, "' has ", p.split.units, " units, fewer than the ", slices,
               " ranks of '", kTensorAxis, "'");
  }
  if (counts_fit(p.split, slices)) return {};
  return bad("parameter '", p.name, "' has counts that do not give its ", p.split.units,
             " units to the ", slices, " ranks of '", kTensorAxis, "'");
}

/// Each rank that computes layers together with others has something of what they split.
Status check_slices(const StepPlan& p) {
  if (p.mesh.find(kTensorAxis) < 0) return {};
  const int slices = slice_of(p.mesh, 0).parts;
  for (const SegmentShape& s : p.model.segments) {
    if (s.heads % slices != 0) {
      return bad("segment '", s.name, "' has ", s.heads, " heads, which ", slices, " ranks of '",
                 kTensorAxis, "' do not divide evenly");
    }
    STORMO_RETURN_IF_ERROR(check_states(s, slices));
    for (const ParameterShape& q : s.parameters) {
      STORMO_RETURN_IF_ERROR(check_slices(q, slices));
    }
  }
  return {};
}

/// Each rank that has positions of a sample has two equal chunks of them, or of all heads a share.
Status check_positions(const StepPlan& p) {
  const bool by_heads = p.attention == AttentionForm::kHeads;
  if (p.mesh.find(kContextAxis) < 0) {
    if (!by_heads) return {};
    return bad("attention '", p.attention, "' needs an axis '", kContextAxis, "'");
  }
  const int ranks = context_part(p.mesh, 0).parts;
  const int together = ranks * slice_of(p.mesh, 0).parts;
  const std::int64_t positions = p.model.segments.front().positions;
  for (const SegmentShape& s : p.model.segments) {
    if (s.positions < 1 || s.positions % (2 * ranks) != 0) {
      return bad("segment '", s.name, "' has ", s.positions,
                 " positions, which are not 2 equal chunks for each of the ", ranks, " ranks of '",
                 kContextAxis, "'");
    }
    if (s.positions != positions) {
      return bad("segment '", s.name, "' has ", s.positions, " positions, and the first segment ",
                 positions);
    }
    const bool has_heads = s.keys == 0 || s.heads > 0;
    if (!by_heads || (has_heads && s.heads % together == 0)) continue;
    return bad("segment '", s.name, "' has ", s.heads, " heads, which ", together,
               " ranks do not divide evenly; use attention 'ring', or fewer ranks");
  }
  return {};
}

/// Every part of every map has a place.
Status check_windows(const SegmentShape& s, const std::vector<Window>& windows, int rows,
                     int columns) {
  for (const Window& w : windows) {
    const bool is_window =
        w.channels >= 1 && w.kernel >= 1 && w.stride >= 1 && w.padding >= 0 && w.padding < w.kernel;
    if (is_window && std::min(w.height, rows_out(w, w.height)) >= rows &&
        std::min(w.width, rows_out(w, w.width)) >= columns) {
      continue;
    }
    return bad("segment '", s.name, "' reads a map of ", w.height, " x ", w.width,
               " places, of which ", rows, " x ", columns, " ranks have no part each");
  }
  return {};
}

/// Ranks have parts of the places up to the one segment that adds up over them.
Status check_places(const StepPlan& p) {
  const int rows = rows_part(p.mesh, 0).parts, columns = columns_part(p.mesh, 0).parts;
  const auto& segments = p.model.segments;
  for (const SegmentShape& s : segments) {
    STORMO_RETURN_IF_ERROR(check_windows(s, s.windows, rows, columns));
    STORMO_RETURN_IF_ERROR(check_windows(s, s.split_windows, slice_of(p.mesh, 0).parts, 1));
  }
  const std::vector<std::string> axes = place_axes(p.mesh);
  if (axes.empty()) return {};
  const auto sums = std::ranges::count_if(
      segments, [](const SegmentShape& s) { return s.spatial_all_reduce != 0; });
  if (sums != 1) {
    return bad(sums, " segments have a spatial_all_reduce; with an axis '", axes.front(),
               "' one has");
  }
  if (segments.front().windows.empty()) {
    return bad("the first segment has no window, so nothing says what parts samples have");
  }
  for (std::size_t i = at(segments_of_places(p.model)); i < segments.size(); ++i) {
    if (segments[i].windows.empty() && segments[i].norms.empty()) continue;
    return bad("segment '", segments[i].name,
               "' has windows or norms, but no ranks have parts of its places");
  }
  return {};
}

/// The ranks of kTensorAxis have equal parts of the positions, from where the first split ends to
/// where the last one begins.
Status check_sequence(const StepPlan& p) {
  if (!p.sequence_parallel) return {};
  if (p.mesh.find(kTensorAxis) < 0) {
    return bad("sequence_parallel needs an axis '", kTensorAxis, "'");
  }
  const int ranks = slice_of(p.mesh, 0).parts * context_part(p.mesh, 0).parts;
  const auto& segments = p.model.segments;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const SegmentShape& s = segments[i];
    if (s.positions < 1 || s.positions % ranks != 0) {
      return bad("segment '", s.name, "' has ", s.positions, " positions, which ", ranks,
                 " ranks do not divide evenly (sequence_parallel)");
    }
    const std::size_t begins = s.sums.backward.size(), ends = s.sums.forward.size();
    if (begins + (i + 1 == segments.size() ? 0 : 1) != ends + (i == 0 ? 0 : 1)) {
      return bad("segment '", s.name, "' begins ", begins, " splits and ends ", ends,
                 ". With sequence_parallel the first segment ends one that it does not begin, the "
                 "last one begins one that it does not end, and all others end what they begin");
    }
    if (s.keys > 0 && s.heads == 0) {
      return bad("segment '", s.name,
                 "' has attention whose heads are not split, so it needs all positions "
                 "(sequence_parallel)");
    }
  }
  if (segments.back().splits_output) return {};
  return bad("sequence_parallel needs an output in parts of the last segment, '",
             segments.back().name, "'");
}

/// One rank of kTensorAxis has the targets: it needs the whole output for the loss, and sends that
/// with the gradient of the output.
Status check_labels(const StepPlan& p) {
  if (p.labels < 0) return {};
  if (p.labels >= slice_of(p.mesh, 0).parts || p.mesh.find(kTensorAxis) < 0) {
    return bad("labels ", p.labels, " is no rank of an axis '", kTensorAxis, "'");
  }
  const SegmentShape& last = p.model.segments.back();
  if (last.splits_output) {
    return bad("with labels the last segment, '", last.name,
               "', cannot have an output in parts: the rank with the labels needs the whole");
  }
  if (!last.sums.loss.empty()) return {};
  return bad("with labels the last segment, '", last.name,
             "', must say how much is sent for the loss (loss_sums)");
}

}  // namespace

Status check(const Mesh& mesh) {
  std::int64_t size = 1;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const Axis& axis = mesh.axes[i];
    if (axis.name.empty()) return bad("mesh: an axis has no name");
    if (at(mesh.find(axis.name)) < i) return bad("mesh: axis '", axis.name, "' is there twice");
    if (axis.size < 1) return bad("mesh: axis '", axis.name, "' has no ranks");
    size *= axis.size;
    if (size > kMaxRanks) return bad("mesh: more than ", kMaxRanks, " ranks");
  }
  return {};
}

Status check(const ModelShape& model) {
  if (model.segments.empty()) return bad("the model has no segments");
  if (num_parameters(model) == 0) return bad("the model has no parameters");
  int before = 0;  // parameters of the segments before
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const SegmentShape& s = model.segments[i];
    if (s.flops_per_sample < 0) return bad("segment ", i, " has a negative size");
    for (const ParameterShape& p : s.parameters) {
      if (const Status st = check(p); !st.ok()) return st.within(text_of("segment ", i));
    }
    for (const int b : s.borrowed) {
      if (b >= 0 && b < before) continue;
      return bad("segment ", i, " borrows parameter ", b, ", which no segment before it has");
    }
    before += static_cast<int>(s.parameters.size());
  }
  return {};
}

Status check_parts(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(check_stages(p));
  STORMO_RETURN_IF_ERROR(check_slices(p));
  STORMO_RETURN_IF_ERROR(check_positions(p));
  STORMO_RETURN_IF_ERROR(check_places(p));
  STORMO_RETURN_IF_ERROR(check_sequence(p));
  return check_labels(p);
}

}  // namespace stormo::plan
