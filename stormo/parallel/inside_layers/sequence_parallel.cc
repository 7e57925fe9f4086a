// Sequence parallelism.
//
// Idea: ranks that compute layers together have all activations between these layers, and compute
// the same norms and residuals with them. But that is done for each position by itself, so each
// rank can do it for a part of them. The sum behind a split layer then gives each rank its
// positions only (a reduce-scatter), and in front of the next one all positions are gathered. Both
// together send what the sum sent. Cost per step: docs/algorithms.md. Paper: see
// sequence_parallel.h.
#include <stormo/parallel/inside_layers/sequence_parallel.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/average_gradients.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

Status check_model(const plan::StepPlan& in) {
  const std::string who = "sequence_parallel: ";
  if (in.mesh.find(plan::kTensorAxis) < 0) {
    return invalid_argument(who +
                            "no ranks compute layers together; apply tensor_parallel() first");
  }
  const int ranks = slice_of(in.mesh, 0).parts * context_part(in.mesh, 0).parts;
  for (const plan::SegmentShape& s : in.model.segments) {
    const std::string segment = "segment '" + s.name + "' ";
    if (s.positions == 0) {
      return invalid_argument(who + segment +
                              "does not compute parts of the positions of a sample, as those of a "
                              "gpt do (Segment::context_form()); leave out "
                              "strategy.sequence_parallel");
    }
    if (s.positions % ranks != 0) {
      return invalid_argument(who + segment + "has " + std::to_string(s.positions) +
                              " positions, which " + std::to_string(ranks) +
                              " ranks do not divide evenly; use a multiple of " +
                              std::to_string(ranks) +
                              " positions (model.context), or leave out "
                              "strategy.sequence_parallel");
    }
  }
  return {};
}

/// Whether the range has something to add up.
bool has_whole(const plan::ModelShape& model, plan::Range parameters) {
  const auto all = flatten(model);
  const auto first = all.begin() + parameters.first;
  return std::any_of(first, first + parameters.size(), plan::is_trained_whole);
}

}  // namespace

Pass sequence_parallel() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (in.sequence_parallel) {
      return Status(Code::kBadPlan, "sequence_parallel: apply it once");
    }
    STORMO_RETURN_IF_ERROR(check_model(in));
    plan::StepPlan out = in;
    out.strategy += "+sequence_parallel";
    out.sequence_parallel = true;
    insert_where_complete(out, {.kind = plan::ActionKind::kAllReduceUnsplit});
    std::erase_if(out.actions, [&](const plan::Action& a) {
      return places(a, plan::Value::kGradients, plan::Placement::kSplit) &&
             !has_whole(out.model, a.range);
    });
    return out;
  };
}

}  // namespace stormo::parallel
