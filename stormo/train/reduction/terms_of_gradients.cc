#include <stormo/train/reduction/terms_of_gradients.h>

#include <set>

namespace stormo::train {

std::vector<int> terms_of_gradients(const plan::StepPlan& plan, std::size_t count) {
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
  std::vector<int> terms(count + 1);
  for (const plan::Action& a : plan.actions) {
    if (!row_of(a.kind).adds_gradients || a.micro_batch != last_batch) continue;
    std::set<std::size_t> added;
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int p : reads[static_cast<std::size_t>(s)]) {
        added.insert(index[static_cast<std::size_t>(p)]);
      }
    }
    for (const std::size_t i : added) ++terms[i];
  }
  terms.pop_back();
  return terms;
}

}  // namespace stormo::train
