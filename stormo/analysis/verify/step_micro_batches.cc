#include <stormo/analysis/verify/step_micro_batches.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;

using plan::bad;

}  // namespace

MicroBatches::MicroBatches(const plan::StepPlan& plan)
    : model_(plan.model),
      segments_(static_cast<int>(plan.model.segments.size())),
      all_(static_cast<std::size_t>(plan.micro_batches)) {
  for (const Action& a : plan.actions) {
    if (a.kind != ActionKind::kRecompute) continue;
    auto& forgotten = of(a).forgotten;
    if (std::ranges::count(forgotten, a.range) == 0) forgotten.push_back(a.range);
  }
}

Status MicroBatches::forward(const Action& a) {
  MicroBatch& m = of(a);
  if (a.range.first != m.forward) {
    return bad(a.range.first < m.forward
                   ? "computes segment " + std::to_string(a.range.first) + " a second time"
                   : "needs the output of segment " + std::to_string(a.range.first - 1) + " first");
  }
  const int before = a.range.first - 1;
  if (is_boundary(model_, before) && !m.activations.contains(before)) {
    return bad("needs the output of segment " + std::to_string(before) + " moved to its stage");
  }
  m.forward = a.range.last + 1;
  m.forwards.push_back(a.range);
  return {};
}

Status MicroBatches::loss(const Action& a) {
  MicroBatch& m = of(a);
  if (m.forward < segments_) {
    return bad("comes before the forward of segment " + std::to_string(m.forward));
  }
  return std::exchange(m.loss, true) ? bad("computes the loss a second time") : Status();
}

Status MicroBatches::recompute(const Action& a) {
  MicroBatch& m = of(a);
  if (!m.loss) return bad("comes before the loss");
  if (a.range.last + 1 == segments_) {
    return bad("forgets the output of the last segment, which the loss keeps");
  }
  const int left = segments_ - m.backward;
  if (a.range.last >= left) {
    return bad("comes after the backward of segment " + std::to_string(left));
  }
  if (std::ranges::count(m.forwards, a.range) == 0) {
    return bad("computes a range again that no forward has computed as one");
  }
  return std::erase(m.forgotten, a.range) > 0 ? Status() : bad("computes its range a third time");
}

Status MicroBatches::backward(const Action& a) {
  MicroBatch& m = of(a);
  if (std::ranges::count(m.forgotten, a.range) > 0) return bad("comes before its recompute");
  const int last = segments_ - 1 - m.backward;
  if (!m.loss) return bad("comes before the loss");
  if (a.range.last != last) {
    return bad(a.range.last > last
                   ? "computes segment " + std::to_string(a.range.last) + " a second time"
                   : "needs the gradient of segment " + std::to_string(a.range.last + 1) +
                         " first");
  }
  if (is_boundary(model_, a.range.last) && !m.gradients.contains(a.range.last)) {
    return bad("needs the gradient of segment " + std::to_string(a.range.last + 1) +
               " moved to its stage");
  }
  if (a.kind == ActionKind::kBackwardInput) {
    if (a.range.first == 0)
      return bad("begins with the batch, which has no gradient; use backward");
    m.weights.push_back(a.range);
  }
  m.backward += a.range.size();
  return {};
}

Status MicroBatches::backward_weight(const Action& a) {
  return std::erase(of(a).weights, a.range) > 0 ? Status() : bad("has no backward_input before it");
}

Status MicroBatches::move_activation(const Action& a) {
  MicroBatch& m = of(a);
  if (m.forward <= a.range.first) {
    return bad("comes before the forward of segment " + std::to_string(a.range.first));
  }
  return m.activations.insert(a.range.first).second ? Status() : bad("moves it a second time");
}

Status MicroBatches::move_gradient(const Action& a) {
  MicroBatch& m = of(a);
  if (segments_ - m.backward > a.range.last) {
    return bad("comes before the backward of segment " + std::to_string(a.range.last));
  }
  return m.gradients.insert(a.range.first).second ? Status() : bad("moves it a second time");
}

Status MicroBatches::all_computed() const {
  for (std::size_t m = 0; m < all_.size(); ++m) {
    if (has_backward(all_[m])) continue;
    return bad("comes before the backward of micro-batch " + std::to_string(m));
  }
  return {};
}

Status MicroBatches::complete() const {
  for (std::size_t m = 0; m < all_.size(); ++m) {
    const bool loss = all_[m].loss;
    if (loss && has_backward(all_[m])) continue;
    return bad(std::string("no action computes the ") + (loss ? "backward" : "loss") +
               " of micro-batch " + std::to_string(m));
  }
  return {};
}

}  // namespace stormo::analysis
