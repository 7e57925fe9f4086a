#include <stormo/analysis/verify/step_micro_batches.h>

#include <algorithm>
#include <utility>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {

using plan::Action;
using plan::bad;

MicroBatches::MicroBatches(const plan::StepPlan& plan)
    : model_(plan.model),
      segments_(static_cast<int>(plan.model.segments.size())),
      all_(static_cast<std::size_t>(plan.micro_batches)) {
  for (const Action& a : plan.actions) {
    if (!row_of(a.kind).recomputes()) continue;
    auto& to_recompute = of(a).to_recompute;
    if (std::ranges::count(to_recompute, a.range) == 0) to_recompute.push_back(a.range);
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
  return std::erase(m.weights_left, a.range) > 0 ? Status()
                                                 : bad("has no backward_input before it");
}

Status MicroBatches::forward(MicroBatch& m, plan::Range range) {
  const int before = range.first - 1;
  if (range.first < m.forward) return bad("computes segment ", range.first, " a second time");
  if (range.first > m.forward) return bad("needs the output of segment ", before, " first");
  if (is_boundary(model_, before) && !m.moved.contains({false, before})) {
    return bad("needs the output of segment ", before, " moved to its stage");
  }
  m.forward = range.last + 1;
  m.forwards.push_back(range);
  return {};
}

Status MicroBatches::loss(MicroBatch& m) const {
  if (m.forward < segments_) return bad("comes before the forward of segment ", m.forward);
  return std::exchange(m.loss, true) ? bad("computes the loss a second time") : Status();
}

Status MicroBatches::recompute(MicroBatch& m, plan::Range range) const {
  if (!m.loss) return bad("comes before the loss");
  if (range.last + 1 == segments_) {
    return bad("forgets the output of the last segment, which the loss keeps");
  }
  const int left = segments_ - m.backward;
  if (range.last >= left) return bad("comes after the backward of segment ", left);
  if (std::ranges::count(m.forwards, range) == 0) {
    return bad("computes a range again that no forward has computed as one");
  }
  return std::erase(m.to_recompute, range) > 0 ? Status() : bad("computes its range a third time");
}

Status MicroBatches::backward(MicroBatch& m, const Action& a) {
  if (std::ranges::count(m.to_recompute, a.range) > 0) return bad("comes before its recompute");
  if (!m.loss) return bad("comes before the loss");
  const int last = segments_ - 1 - m.backward, behind = a.range.last + 1;
  if (a.range.last > last) return bad("computes segment ", a.range.last, " a second time");
  if (a.range.last < last) return bad("needs the gradient of segment ", behind, " first");
  if (is_boundary(model_, a.range.last) && !m.moved.contains({true, a.range.last})) {
    return bad("needs the gradient of segment ", behind, " moved to its stage");
  }
  if (!row_of(a.kind).adds_gradients) {
    if (a.range.first == 0) {
      return bad("begins with the batch, which has no gradient; use backward");
    }
    m.weights_left.push_back(a.range);
  }
  m.backward += a.range.size();
  return {};
}

Status MicroBatches::move(MicroBatch& m, const Action& a) const {
  const bool gradient = row_of(a.kind).makes.has(plan::Value::kOutputGradient);
  const int from = ends_of(a).from;
  if (gradient ? segments_ - m.backward > from : m.forward <= from) {
    return bad("comes before the ", gradient ? "backward" : "forward", " of segment ", from);
  }
  const bool first = m.moved.insert({gradient, a.range.first}).second;
  return first ? Status() : bad("moves it a second time");
}

std::size_t MicroBatches::first_left() const {
  const auto has_backward = [this](const MicroBatch& m) {
    return m.backward == segments_ && m.weights_left.empty();
  };
  return static_cast<std::size_t>(std::ranges::find_if_not(all_, has_backward) - all_.begin());
}

Status MicroBatches::all_computed() const {
  const std::size_t m = first_left();
  if (m == all_.size()) return {};
  return bad("comes before the backward of micro-batch ", m);
}

Status MicroBatches::complete() const {
  const std::size_t m = first_left();
  if (m == all_.size()) return {};
  return bad("no action computes the ", all_[m].loss ? "backward" : "loss", " of micro-batch ", m);
}

}  // namespace stormo::analysis
