#include <stormo/analysis/verify/step_verify.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_walk.h>
#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/check/check.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::bad;

/// When an action comes after the load of its batch: steps, then the place in the plan.
using When = std::pair<int, std::size_t>;

/// By parameter: when a batch adds to its gradients for the first time.
std::vector<std::optional<When>> first_additions(const plan::StepPlan& p) {
  std::vector<std::optional<When>> out(at(num_parameters(p.model)));
  const auto reads = parameters_read(p.model);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    if (!row_of(a.kind).adds_gradients) continue;
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int parameter : reads[at(s)]) {
        std::optional<When>& first = out[at(parameter)];
        first = std::min(first.value_or(When(a.delay, i)), When(a.delay, i));
      }
    }
  }
  return out;
}

/// Where steps overlap (Action::delay), no rank adds gradients of one batch to those of the batch
/// before, which it has not used yet.
Status check_overlap(const plan::StepPlan& p) {
  if (longest_delay(p) == 0) {
    if (!p.newest_weights) return {};
    return bad("newest_weights: no steps overlap, so a backward has no older parameters");
  }
  const bool recomputes =
      std::ranges::any_of(p.actions, [](const Action& a) { return row_of(a.kind).recomputes(); });
  if (p.newest_weights && recomputes) {
    return bad(
        "newest_weights: a recomputation would make other activations than its forward, with newer "
        "parameters; leave out recompute or newest_weights (in a recipe train.recompute, "
        "strategy.weight_stashing)");
  }
  if (!row_of(p.actions.back().kind).all_batches) {
    return bad("steps overlap, so the last action has to be agree");
  }
  if (p.chosen) return {};  // each batch has gradients of its own
  const auto additions = first_additions(p);
  const auto shapes = flatten(p.model);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    if (!row_of(a.kind).makes.has(plan::Value::kUpdated)) continue;
    for (int n = a.range.first; n <= a.range.last; ++n) {
      const std::optional<When>& first = additions[at(n)];
      const bool in_time = !first || When(a.delay, i) < When(first->first + 1, first->second);
      if (in_time || !shapes[at(n)]->trainable) continue;
      return bad(describe(p, i), ": comes after ", describe(p, first->second),
                 " of the next batch, which adds to the same gradients of parameter ", n, " (",
                 shapes[at(n)]->name, ")");
    }
  }
  return {};
}

}  // namespace

Status verify(const plan::StepPlan& p) {
  STORMO_RETURN_IF_ERROR(plan::check(p));
  StepWalk walk(p);
  for (const std::size_t i : order_of_batch(p)) {
    const Status st = walk.next(p.actions[i]);
    if (!st.ok()) return st.within(describe(p, i));
  }
  STORMO_RETURN_IF_ERROR(walk.finish());
  return check_overlap(p);
}

}  // namespace stormo::analysis
