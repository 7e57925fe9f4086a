// Tensor parallelism.
//
// Idea: a matrix product can be cut over several ranks. Of two layers that follow each other, the
// first one is cut by its outputs and the second one by its inputs. So what is between them is
// never whole anywhere, and one sum behind the second layer gives every rank the output. Attention
// is cut by heads. The sums are part of the computation: a segment states them, and no action is
// added here. Cost per step: docs/algorithms.md. Paper: see tensor_parallel.h.
#include <stormo/parallel/inside_layers/tensor_parallel.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

/// "1, 2, 4".
std::string divisors(int n) {
  std::string out;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) out += (out.empty() ? "" : ", ") + std::to_string(d);
  }
  return out;
}

Status check(const plan::StepPlan& in, int ranks) {
  const std::string who = "tensor_parallel: ";
  const int context =
      in.attention == plan::AttentionForm::kHeads ? context_part(in.mesh, 0).parts : 1;
  bool splits = false;
  for (const plan::SegmentShape& s : in.model.segments) {
    if (s.heads % ranks != 0) {
      return invalid_argument(who + "segment '" + s.name + "' has " + std::to_string(s.heads) +
                              " heads of attention, which " + std::to_string(ranks) +
                              " ranks do not divide evenly; use one of " + divisors(s.heads) +
                              " ranks");
    }
    if (s.heads % (ranks * context) != 0) {
      return invalid_argument(who + "segment '" + s.name + "' has " + std::to_string(s.heads) +
                              " heads of attention, which " + std::to_string(ranks) + " times " +
                              std::to_string(context) +
                              " ranks do not divide evenly; use attention 'ring', or fewer ranks");
    }
    for (const plan::ParameterShape& p : s.parameters) {
      splits = splits || p.split.units > 0;
      if (!p.split.counts.empty() && std::ssize(p.split.counts) != ranks) {
        return invalid_argument(who + "segment '" + s.name + "' is divided over " +
                                std::to_string(p.split.counts.size()) + " ranks, not over " +
                                std::to_string(ranks) + "; use as many");
      }
      if (!p.split.counts.empty() || p.split.units == 0 || p.split.units >= ranks) continue;
      return invalid_argument(who + "'" + p.name + "' can be cut into " +
                              std::to_string(p.split.units) + " parts, not into " +
                              std::to_string(ranks) + "; use fewer ranks");
    }
    for (const plan::Window& w : s.split_windows) {
      const std::int64_t rows = std::min(w.height, rows_out(w, w.height));
      if (rows >= ranks) continue;
      return invalid_argument(who + "segment '" + s.name + "' has a map of " +
                              std::to_string(rows) + " rows, fewer than " + std::to_string(ranks) +
                              " ranks; use fewer ranks");
    }
  }
  if (splits) return {};
  return invalid_argument(who +
                          "no layer of the model can be cut: it is no model::Chain with "
                          "segments that state how (Segment::split_form()); use 'ddp'");
}

}  // namespace

Pass tensor_parallel(int ranks) {
  return [ranks](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    STORMO_RETURN_IF_ERROR(add_inner_axis(out, "tensor_parallel", {plan::kTensorAxis, ranks},
                                          plan::Placement::kSplit));
    STORMO_RETURN_IF_ERROR(check(in, ranks));
    out.strategy += "+tensor" + std::to_string(ranks);
    const bool has_parts = out.model.segments.back().splits_output;
    for (plan::Action& a : out.actions) {
      const bool adds_up =
          makes(a, plan::Value::kNorm) || (makes(a, plan::Value::kLoss) && has_parts);
      if (adds_up) a.axes.emplace_back(plan::kTensorAxis);
    }
    return out;
  };
}

}  // namespace stormo::parallel
