#include <stormo/analysis/verify/step_micro_batches.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::bad;

}  // namespace

MicroBatches::MicroBatches(const plan::StepPlan& plan)
    : model_(plan.model),
      segments_(static_cast<int>(plan.model.segments.size())),
      all_(static_cast<std::size_t>(plan.micro_batches)) {
  for (const Action& a : plan.actions) {
    if (!row_of(a.kind).recomputes()) continue;
    auto& forgotten = of(a).forgotten;
    if (std::ranges::count(forgotten, a.range) == 0) forgotten.push_back(a.range);
  }
}

Status MicroBatches::next(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  MicroBatch& m = of(a);
  if (row.moves()) return move(m, a);
  if (row.makes.has(plan::Value::kLoss)) return loss(m);
  if (row.recomputes()) return recompute(m, a.range);
  if (row.runs_forward()) return forward(m, a.range);
  if (row.passes_gradient()) return backward(m, a);
  return std::erase(m.weights, a.range) > 0 ? Status() : bad("has no backward_input before it");
}

Status MicroBatches::forward(MicroBatch& m, plan::Range range) {
  if (range.first != m.forward) {
    return bad(range.first < m.forward
                   ? "computes segment " + std::to_string(range.first) + " a second time"
                   : "needs the output of segment " + std::to_string(range.first - 1) + " first");
  }
  const int before = range.first - 1;
  if (is_boundary(model_, before) && !m.moved.contains({false, before})) {
    return bad("needs the output of segment " + std::to_string(before) + " moved to its stage");
  }
  m.forward = range.last + 1;
  m.forwards.push_back(range);
  return {};
}

Status MicroBatches::loss(MicroBatch& m) const {
  if (m.forward < segments_) {
    return bad("comes before the forward of segment " + std::to_string(m.forward));
  }
  return std::exchange(m.loss, true) ? bad("computes the loss a second time") : Status();
}

Status MicroBatches::recompute(MicroBatch& m, plan::Range range) const {
  if (!m.loss) return bad("comes before the loss");
  if (range.last + 1 == segments_) {
    return bad("forgets the output of the last segment, which the loss keeps");
  }
  const int left = segments_ - m.backward;
  if (range.last >= left) {
    return bad("comes after the backward of segment " + std::to_string(left));
  }
  if (std::ranges::count(m.forwards, range) == 0) {
    return bad("computes a range again that no forward has computed as one");
  }
  return std::erase(m.forgotten, range) > 0 ? Status() : bad("computes its range a third time");
}

Status MicroBatches::backward(MicroBatch& m, const Action& a) {
  if (std::ranges::count(m.forgotten, a.range) > 0) return bad("comes before its recompute");
  const int last = segments_ - 1 - m.backward;
  if (!m.loss) return bad("comes before the loss");
  if (a.range.last != last) {
    return bad(a.range.last > last
                   ? "computes segment " + std::to_string(a.range.last) + " a second time"
                   : "needs the gradient of segment " + std::to_string(a.range.last + 1) +
                         " first");
  }
  if (is_boundary(model_, a.range.last) && !m.moved.contains({true, a.range.last})) {
    return bad("needs the gradient of segment " + std::to_string(a.range.last + 1) +
               " moved to its stage");
  }
  if (!row_of(a.kind).adds_gradients) {
    if (a.range.first == 0)
      return bad("begins with the batch, which has no gradient; use backward");
    m.weights.push_back(a.range);
  }
  m.backward += a.range.size();
  return {};
}

Status MicroBatches::move(MicroBatch& m, const Action& a) const {
  const bool gradient = row_of(a.kind).makes.has(plan::Value::kOutputGradient);
  const int from = ends_of(a).from;
  if (gradient ? segments_ - m.backward > from : m.forward <= from) {
    return bad(std::string("comes before the ") + (gradient ? "backward" : "forward") +
               " of segment " + std::to_string(from));
  }
  return m.moved.insert({gradient, a.range.first}).second ? Status()
                                                          : bad("moves it a second time");
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
