#include <stormo/analysis/verify/step_overlap.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;

/// When an action comes after the load of its batch: steps, then the place in the plan.
using When = std::pair<int, std::size_t>;

/// By parameter and stage: when a batch adds to its gradients for the first time.
std::vector<std::vector<std::optional<When>>> first_additions(const plan::StepPlan& p) {
  std::vector<std::vector<std::optional<When>>> out(
      at(num_parameters(p.model)), std::vector<std::optional<When>>(at(num_stages(p.mesh))));
  const auto reads = parameters_read(p.model);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    if (!row_of(a.kind).adds_gradients) continue;
    const When when(a.delay, i);
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int parameter : reads[at(s)]) {
        auto& first = out[at(parameter)][at(p.model.segments[at(s)].stage)];
        if (!first || when < *first) first = when;
      }
    }
  }
  return out;
}

}  // namespace

Status check_overlap(const plan::StepPlan& p) {
  if (longest_delay(p) == 0) {
    if (!p.newest_weights) return {};
    return Status(Code::kBadPlan,
                  "newest_weights: no steps overlap, so a backward has no older parameters");
  }
  const bool recomputes =
      std::ranges::any_of(p.actions, [](const Action& a) { return row_of(a.kind).recomputes(); });
  if (p.newest_weights && recomputes) {
    return Status(Code::kBadPlan,
                  "newest_weights: a recomputation would make other activations than its forward, "
                  "with newer parameters; leave out recompute or newest_weights (in a recipe "
                  "train.recompute, strategy.weight_stashing)");
  }
  const bool agrees_last = !p.actions.empty() && row_of(p.actions.back().kind).all_batches;
  if (!agrees_last)
    return Status(Code::kBadPlan, "steps overlap, so the last action has to be agree");
  if (p.chosen) return {};  // each batch has gradients of its own
  const auto additions = first_additions(p);
  const auto shapes = flatten(p.model);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    if (!row_of(a.kind).makes.has(plan::Value::kUpdated)) continue;
    for (int parameter = a.range.first; parameter <= a.range.last; ++parameter) {
      if (!shapes[at(parameter)]->trainable) continue;
      for (const std::optional<When>& first : additions[at(parameter)]) {
        if (!first || When(a.delay, i) < When(first->first + 1, first->second)) continue;
        return Status(Code::kBadPlan,
                      describe(p, i) + ": comes after " + describe(p, first->second) +
                          " of the next batch, which adds to the same gradients of parameter " +
                          std::to_string(parameter) + " (" + shapes[at(parameter)]->name + ")");
      }
    }
  }
  return {};
}

}  // namespace stormo::analysis
