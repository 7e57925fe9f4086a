#include <stormo/parallel/computation/recompute.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <stormo/analysis/transfer/inner.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Range;

/// The groups of a range of segments, in order.
std::vector<Range> groups_of(Range segments) {
  const int each = static_cast<int>(std::lround(std::sqrt(segments.size())));
  std::vector<Range> out;
  for (int first = segments.first; first <= segments.last; first += each) {
    out.push_back({first, std::min(first + each - 1, segments.last)});
  }
  return out;
}

}  // namespace

Pass recompute() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+recompute";
    out.actions.clear();
    const int end = all_segments(in.model).last, begin = analysis::first_trained_segment(in.model);
    for (const Action& a : in.actions) {
      const plan::ActionRow& row = row_of(a.kind);
      if (row.recomputes()) {
        return Status(Code::kBadPlan, "recompute: the plan recomputes already; apply it once");
      }
      const bool backward = row.passes_gradient() || row.adds_gradients;
      if (!backward && !row.runs_forward()) {
        out.actions.push_back(a);
        continue;
      }
      std::vector<Range> groups = groups_of(a.range);
      if (backward) std::ranges::reverse(groups);
      for (const Range group : groups) {
        Action part = a;
        part.range = group;
        // the backward of the last group comes right after its forward: nothing to gain
        if (row.passes_gradient() && group.last != end && group.last >= begin) {
          out.actions.push_back(part);
          out.actions.back().kind = plan::ActionKind::kRecompute;
        }
        out.actions.push_back(part);
      }
    }
    return out;
  };
}

}  // namespace stormo::parallel
