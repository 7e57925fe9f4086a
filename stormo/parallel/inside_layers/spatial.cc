// Spatial cut of convolutional networks.
//
// Idea: a convolution reads few places around each place of its output, so ranks can share the
// places of large images. Each rank receives the halo of its part before it convolves, and sends
// the gradients of the halo back. What looks at all places adds up over the ranks: batch
// normalisation, and the last layer of which they have parts. To all others it is data parallelism:
// each rank has terms of the gradients, and they are averaged. Halos and sums are part of the
// computation: a segment states them, and no action is added for them. Cost per step:
// docs/algorithms.md. Paper: see spatial.h.
#include <stormo/parallel/inside_layers/spatial.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/parallel/average_gradients.h>
#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

std::string by(std::int64_t rows, std::int64_t columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}

/// All that is wrong.
std::string problems_of(const plan::ModelShape& model, int rows, int columns) {
  const int in_parts = segments_of_places(model);
  if (in_parts == 0) {
    return "no segment adds up over the places of an image, as those of a cnn and a resnet20 do "
           "(Segment::place_form()); leave out strategy.spatial";
  }
  std::string out;
  for (int i = 0; i < in_parts; ++i) {
    const plan::SegmentShape& s = model.segments[static_cast<std::size_t>(i)];
    for (const plan::Window& w : s.windows) {
      const std::int64_t height = std::min(w.height, rows_out(w, w.height));
      const std::int64_t width = std::min(w.width, rows_out(w, w.width));
      if (height >= rows && width >= columns) continue;
      out += (out.empty() ? "" : "; ") + ("segment '" + s.name + "' has a map of ") +
             by(height, width) + " places, fewer than the grid of " + by(rows, columns) + " ranks";
    }
  }
  return out.empty() ? out : out + "; use a smaller grid (strategy.spatial), or larger images";
}

}  // namespace

Pass spatial(int rows, int columns) {
  return [=](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (rows < 1 || columns < 1 || (rows == 1 && columns == 1)) {
      return invalid_argument("spatial: a grid of " + by(rows, columns) +
                              " ranks; give at least 1 x 2 or 2 x 1");
    }
    const std::string problems = problems_of(in.model, rows, columns);
    if (!problems.empty()) return invalid_argument("spatial: " + problems);
    plan::StepPlan out = in;
    out.strategy += "+spatial" + std::to_string(rows) + "x" + std::to_string(columns);
    for (const plan::Axis& axis :
         {plan::Axis{plan::kRowsAxis, rows}, plan::Axis{plan::kColumnsAxis, columns}}) {
      if (axis.size == 1) continue;
      STORMO_RETURN_IF_ERROR(add_inner_axis(out, "spatial", axis, plan::Placement::kReplicate));
    }
    const std::vector<std::string> axes = plan::place_axes(out.mesh);
    // each is put in front of those over which gradients are averaged already
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) average_gradients(out, *axis);
    return out;
  };
}

}  // namespace stormo::parallel
