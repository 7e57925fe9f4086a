#include <stormo/train/reduction/complete_gradients.h>

#include <set>

namespace stormo::train {

void CompleteGradients::set_plan(const plan::StepPlan& plan, std::size_t count) {
  std::vector<std::size_t> index;  // by parameter of the plan, in the list
  std::size_t next = 0;
  for (const plan::ParameterShape* p : flatten(plan.model)) {
    index.push_back(p->trainable && !p->elsewhere ? next++ : count);
  }
  int last_batch = 0;
  for (const plan::Action& a : plan.actions) {
    if (row_of(a.kind).adds_gradients) last_batch = a.micro_batch;
  }
  const auto reads = parameters_read(plan.model);
  expected_.assign(count + 1, 0);
  for (const plan::Action& a : plan.actions) {
    if (!row_of(a.kind).adds_gradients || a.micro_batch != last_batch) continue;
    std::set<std::size_t> added;
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int p : reads[static_cast<std::size_t>(s)]) {
        added.insert(index[static_cast<std::size_t>(p)]);
      }
    }
    for (const std::size_t i : added) ++expected_[i];
  }
  next_pass();
}

void CompleteGradients::next_pass() { added_.assign(expected_.size(), 0); }

CompleteGradients::State CompleteGradients::add(std::size_t index) {
  const int added = ++added_[index];
  if (added > expected_[index]) return State::kAgain;
  return added == expected_[index] ? State::kComplete : State::kMore;
}

}  // namespace stormo::train
