// Context parallelism.
//
// Idea: most layers of a transformer compute each position by itself, so ranks can share the
// positions of a long sample. Only attention looks at other positions: there ranks exchange keys
// and values. To all others it is data parallelism: each rank has the gradients of its positions,
// and they are averaged. What attention exchanges is part of the computation: a segment states it,
// and no action is added for it. Cost per step: docs/algorithms.md. Papers: see context_parallel.h.
#include <stormo/parallel/inside_layers/context_parallel.h>

#include <string>

#include <stormo/parallel/average_gradients.h>
#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

Status check(const plan::StepPlan& in, int ranks, plan::AttentionForm attention) {
  const std::string who = "context_parallel: ";
  for (const plan::SegmentShape& s : in.model.segments) {
    const std::string segment = "segment '" + s.name + "' ";
    if (s.positions == 0) {
      return invalid_argument(who + segment +
                              "does not compute parts of the positions of a sample, as those of a "
                              "gpt do (Segment::context_form()); leave out strategy.context");
    }
    if (s.positions % (2 * ranks) != 0) {
      return invalid_argument(who + segment + "has " + std::to_string(s.positions) +
                              " positions, which are not 2 equal chunks for each of " +
                              std::to_string(ranks) + " ranks; use a multiple of " +
                              std::to_string(2 * ranks) +
                              " positions (model.context), or fewer ranks that share them "
                              "(strategy.context)");
    }
    const bool has_heads = s.keys == 0 || s.heads > 0;
    if (attention == plan::AttentionForm::kHeads && !(has_heads && s.heads % ranks == 0)) {
      return invalid_argument(who + segment + "has " + std::to_string(s.heads) +
                              " heads of attention, which " + std::to_string(ranks) +
                              " ranks do not divide evenly; use attention 'ring'");
    }
  }
  return {};
}

}  // namespace

Pass context_parallel(int ranks, plan::AttentionForm attention) {
  return [=](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    STORMO_RETURN_IF_ERROR(add_inner_axis(out, "context_parallel", {plan::kContextAxis, ranks},
                                          plan::Placement::kReplicate));
    STORMO_RETURN_IF_ERROR(check(in, ranks, attention));
    out.strategy += "+context" + std::to_string(ranks) + "_" + std::string(to_string(attention));
    out.attention = attention;
    average_gradients(out, plan::kContextAxis);
    return out;
  };
}

}  // namespace stormo::parallel
