#include <stormo/analysis/transfer/crossings.h>

#include <algorithm>
#include <utility>

#include <stormo/analysis/transfer/inner.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Part;
using plan::Share;
using plan::Window;

/// One of the two dimensions of a map that ranks have parts of.
struct Cut {
  std::string axis;
  std::int64_t extent = 0;  // rows or columns of the map

  Share own(const Part& part) const { return plan::share(extent, part.parts, part.index); }
  Share read(const Window& w, const Part& part) const {
    return plan::rows_read(w, extent, part.parts, part.index);
  }
};

Part part_on(const plan::Mesh& mesh, Rank rank, const std::string& axis) {
  const int at = mesh.find(axis);
  if (at < 0) return {};
  return {mesh.coordinates(rank)[static_cast<std::size_t>(at)],
          mesh.axes[static_cast<std::size_t>(at)].size};
}

/// Every rank of the axis in this stage to every other one. `lines`: by rank, how many numbers of a
/// sample it has of each row (of each column) at this time.
Crossing exchange(const plan::Mesh& mesh, int stage, const Window& w, const Cut& cut,
                  const std::vector<std::int64_t>& lines) {
  Crossing out{.axis = cut.axis};
  for (Rank from = 0; from < mesh.size(); ++from) {
    if (plan::stage_of(mesh, from) != stage) continue;
    const Part own = part_on(mesh, from, cut.axis);
    const std::vector<Rank> line = mesh.group(from, cut.axis);
    for (int other = 0; other < own.parts; ++other) {
      const Share sent = common(cut.own(own), cut.read(w, {other, own.parts}));
      if (other == own.index || sent.size() == 0) continue;
      out.messages.push_back({.from = from,
                              .to = line[static_cast<std::size_t>(other)],
                              .bytes = sent.size() * lines[static_cast<std::size_t>(from)]});
    }
  }
  return out;
}

/// Of the values of a map, first along the rows. Numbers of one sample in place of bytes.
std::vector<Crossing> forward(const plan::Mesh& mesh, int stage, const Window& w, bool of_slices) {
  const Cut rows{of_slices ? plan::kTensorAxis : plan::kRowsAxis, w.height};
  const Cut columns{of_slices ? "" : plan::kColumnsAxis, w.width};
  std::vector<std::int64_t> in_a_row, in_a_column;
  for (Rank r = 0; r < mesh.size(); ++r) {
    in_a_row.push_back(w.channels * columns.own(part_on(mesh, r, columns.axis)).size());
    in_a_column.push_back(w.channels * rows.read(w, part_on(mesh, r, rows.axis)).size());
  }
  std::vector<Crossing> out;
  if (mesh.find(rows.axis) >= 0) out.push_back(exchange(mesh, stage, w, rows, in_a_row));
  if (mesh.find(columns.axis) >= 0) out.push_back(exchange(mesh, stage, w, columns, in_a_column));
  std::erase_if(out, [](const Crossing& e) { return e.messages.empty(); });
  return out;
}

/// Of states of a graph. Bytes as above.
std::vector<Crossing> states(const plan::Mesh& mesh, const plan::SegmentShape& segment) {
  std::vector<Crossing> out;
  for (const std::vector<plan::StateCrossing>& exchange : segment.state_crossings) {
    Crossing& now = out.emplace_back(Crossing{.axis = plan::kTensorAxis});
    for (Rank first = 0; first < mesh.size(); ++first) {
      if (part_on(mesh, first, plan::kTensorAxis).index > 0) continue;
      if (plan::stage_of(mesh, first) != segment.stage) continue;
      const std::vector<Rank> line = mesh.group(first, plan::kTensorAxis);
      for (const plan::StateCrossing& c : exchange) {
        now.messages.push_back({.from = line[static_cast<std::size_t>(c.from)],
                                .to = line[static_cast<std::size_t>(c.to)],
                                .bytes = c.elements});
      }
    }
  }
  return out;
}

/// Each message back, the last exchange first.
void turn_around(std::vector<Crossing>& exchanges) {
  std::ranges::reverse(exchanges);
  for (Crossing& e : exchanges) {
    for (Crossing::Message& m : e.messages) std::swap(m.from, m.to);
  }
}

}  // namespace

std::vector<Crossing> crossings_of(const plan::StepPlan& plan, const plan::Action& a,
                                   const StepSizes& sizes) {
  const bool forwards = row_of(a.kind).runs_forward();
  const bool backwards = row_of(a.kind).passes_gradient();
  std::vector<Crossing> out;
  const bool in_parts =
      !plan::place_axes(plan.mesh).empty() || plan.mesh.find(plan::kTensorAxis) >= 0;
  if (!in_parts || (!forwards && !backwards)) return out;
  const int first_trained = backwards ? first_trained_segment(plan.model) : 0;
  const DType own = parameter_type(plan.model), computed = sizes.computes_in.value_or(own);
  const auto append = [&](std::vector<Crossing> some, DType type) {
    const std::int64_t factor = sizes.samples * static_cast<std::int64_t>(size_of(type));
    for (Crossing& c : some) {
      for (Crossing::Message& m : c.messages) m.bytes *= factor;
      out.push_back(std::move(c));
    }
  };
  for (int s = std::max(a.range.first, first_trained); s <= a.range.last; ++s) {
    const plan::SegmentShape& segment = plan.model.segments[static_cast<std::size_t>(s)];
    for (const bool of_slices : {false, true}) {
      const auto& windows = of_slices ? segment.split_windows : segment.windows;
      for (std::size_t i = 0; i < windows.size(); ++i) {
        if (backwards && s == first_trained && i == 0) continue;  // its input has no gradient
        const bool of_sample = s == 0 && i == 0;
        append(forward(plan.mesh, segment.stage, windows[i], of_slices),
               of_sample ? own : computed);
      }
    }
    std::vector<Crossing> of_graph = states(plan.mesh, segment);
    if (backwards && !of_graph.empty()) of_graph.pop_back();  // the output's gradient is everywhere
    append(std::move(of_graph), computed);
  }
  if (backwards) turn_around(out);
  return out;
}

}  // namespace stormo::analysis
