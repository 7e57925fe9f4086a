#include <stormo/plan/check/momentum.h>

#include <algorithm>
#include <optional>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

/// All ranks have copies of the model, or share them, and this action is over all of them.
bool has_whole_copies(const StepPlan& p, const Action& a) {
  return a.axes.size() == p.mesh.axes.size() && model_axes(p.mesh).empty() &&
         std::ranges::all_of(p.parameters, [](Placement x) {
           return x == Placement::kReplicate || x == Placement::kShared;
         });
}

/// Of those that are trained in the range; nothing: they have several.
std::optional<DType> one_type(const StepPlan& p, Range range) {
  std::optional<DType> out;
  const auto shapes = flatten(p.model);
  for (int i = range.first; i <= range.last; ++i) {
    const ParameterShape& own = *shapes[static_cast<std::size_t>(i)];
    if (!own.trainable) continue;
    if (out && *out != own.dtype) return {};
    out = own.dtype;
  }
  return out;
}

}  // namespace

Status check_momentum(const StepPlan& p, const Action& a,
                      const codec::MomentumCorrection& correction) {
  const std::string& word = a.algorithm;
  if (!(correction.momentum > 0 && correction.momentum < 1 && correction.clip_norm >= 0)) {
    return bad("has ", word, ", whose momentum must be above 0 and below 1, and its norm positive");
  }
  if (!row_of(a.codec).has_density) {
    return bad("has ", word, ", which is for codecs that send few numbers, such as top_k");
  }
  if (!places(a, Value::kGradients, Placement::kReplicate) || !has_whole_copies(p, a)) {
    return bad("has ", word, ", which is for gradients of whole replicas, over all axes at once");
  }
  const auto shapes = flatten(p.model);
  for (int i = a.range.first; i <= a.range.last; ++i) {
    const ParameterShape& own = *shapes[static_cast<std::size_t>(i)];
    if (!own.sparse || !own.trainable) continue;
    return bad("has ", word, ", which is for dense gradients, and that of '", own.name,
               "' is sparse");
  }
  if (correction.clip_norm == 0) return {};
  if (p.clipped) return bad("has ", word, ", and gradients are clipped once more after it");
  if (a.range != all_parameters(p.model) || !one_type(p, a.range)) {
    return bad("has ", word, ", whose norm is of the whole gradient, which ranks then send in one ",
               "message of one type: leave out buckets");
  }
  return {};
}

}  // namespace stormo::plan
