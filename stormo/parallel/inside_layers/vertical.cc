// Vertical sharding, by features.
//
// Idea: the product of the first layer is a sum over columns, so each rank computes the terms of
// the columns that it has, and one all-reduce gives all ranks the output. Behind it all ranks have
// the same values and compute the same. The loss needs the targets, which one rank has. It sends
// the gradient of the output, which is small, and each rank goes back from there by itself: to the
// first layer's output without a message, and there to the columns it has. Cost per step and
// papers: docs/algorithms.md, vertical.h.
#include <stormo/parallel/inside_layers/vertical.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

const std::string kWho = "vertical: ";

/// Whether the first segment is cut by its inputs, and no other one.
bool is_cut_by_columns(const plan::ModelShape& model) {
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const plan::SegmentShape& s = model.segments[i];
    int split = 0;
    for (const plan::ParameterShape& p : s.parameters) {
      if (p.split.units == 0) continue;
      if (i > 0 || p.split.dim != 1 || p.split.blocks != 1) return false;
      ++split;
    }
    if (i == 0 && (split == 0 || s.sums.forward.empty())) return false;
    if (s.splits_output || s.heads > 0) return false;
  }
  return !model.segments.empty() && !model.segments.back().sums.loss.empty();
}

Status check(const plan::ModelShape& model, const VerticalOptions& o) {
  if (!is_cut_by_columns(model)) {
    return invalid_argument(kWho +
                            "the first layer of the model cannot be cut by columns; use an mlp");
  }
  if (o.labels < 0 || o.labels >= o.ranks) {
    return invalid_argument(kWho + "labels are on rank " + std::to_string(o.labels) +
                            ", and there are ranks 0 to " + std::to_string(o.ranks - 1));
  }
  std::int64_t columns = 0;
  for (const plan::ParameterShape& p : model.segments.front().parameters) {
    if (p.split.units > 0) columns = p.split.units;
  }
  if (columns < o.ranks) {
    return invalid_argument(kWho + std::to_string(columns) + " columns leave none for some of " +
                            std::to_string(o.ranks) + " ranks; use fewer ranks");
  }
  if (o.columns.empty()) return {};
  const bool fits = plan::counts_fit({.units = columns, .counts = o.columns}, o.ranks);
  if (fits && std::ranges::min(o.columns) >= 1) return {};
  std::string counts;
  for (const std::int64_t n : o.columns) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
  return invalid_argument(kWho + "ranks with " + counts + " columns are not " +
                          std::to_string(o.ranks) + " ranks that have all " +
                          std::to_string(columns) + " columns, and at least one each");
}

}  // namespace

Pass vertical(const VerticalOptions& options) {
  return [options](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    STORMO_RETURN_IF_ERROR(add_inner_axis(out, "vertical", {plan::kTensorAxis, options.ranks},
                                          plan::Placement::kSplit));
    STORMO_RETURN_IF_ERROR(check(in.model, options));
    out.strategy += "+vertical";
    out.labels = options.labels;
    for (plan::ParameterShape& p : out.model.segments.front().parameters) {
      if (p.split.units > 0) p.split.counts = options.columns;
    }
    for (plan::Action& a : out.actions) {
      const bool together = makes(a, plan::Value::kNorm) || makes(a, plan::Value::kLoss);
      if (together) a.axes.emplace_back(plan::kTensorAxis);
    }
    return out;
  };
}

}  // namespace stormo::parallel
