#include <stormo/parallel/average_gradients.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

/// By parameter: when the last action adds to its gradients of a batch, as a position in `order`; 0
/// if none does.
std::vector<std::size_t> last_additions(const plan::StepPlan& in,
                                        const std::vector<std::size_t>& order) {
  std::vector<std::size_t> out(static_cast<std::size_t>(num_parameters(in.model)));
  const auto reads = parameters_read(in.model);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const plan::Action& a = in.actions[order[i]];
    if (!row_of(a.kind).adds_gradients) continue;
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int p : reads[static_cast<std::size_t>(s)]) out[static_cast<std::size_t>(p)] = i;
    }
  }
  return out;
}

}  // namespace

void insert_where_complete(plan::StepPlan& plan, const plan::Action& action) {
  const plan::StepPlan in = plan;
  plan.actions.clear();
  const std::vector<std::size_t> order = order_of_batch(in);
  const std::vector<std::size_t> last = last_additions(in, order);
  std::map<std::size_t, std::set<std::pair<int, int>>> complete;  // ranges, by action
  for (const plan::Action& a : in.actions) {
    if (!row_of(a.kind).adds_gradients) continue;
    const plan::Range own = parameters_of(in.model, a.range);
    if (own.size() == 0) continue;
    const auto end = last.begin() + own.last + 1;
    std::size_t when = order[*std::max_element(last.begin() + own.first, end)];
    // a stage of a pipeline first sends on what another one waits for
    const bool sends =
        when + 1 < in.actions.size() && makes(in.actions[when + 1], plan::Value::kOutputGradient);
    complete[sends ? when + 1 : when].insert({own.first, own.last});
  }
  for (std::size_t i = 0; i < in.actions.size(); ++i) {
    plan.actions.push_back(in.actions[i]);
    for (const auto& [first, end] : complete[i]) {
      plan.actions.push_back(action);
      plan.actions.back().range = {first, end};
      plan.actions.back().delay = in.actions[i].delay;
    }
  }
}

void average_gradients(plan::StepPlan& plan, const std::string& axis) {
  bool averages = false;
  for (plan::Action& a : plan.actions) {
    if (!places(a, plan::Value::kGradients, plan::Placement::kReplicate)) continue;
    a.axes.insert(a.axes.begin(), axis);
    averages = true;
  }
  if (averages) return;
  insert_where_complete(plan, {.kind = plan::ActionKind::kAllReduce, .axes = {axis}});
}

void average_in_worker(plan::StepPlan& plan) {
  const auto adds = [](const plan::Action& a) { return row_of(a.kind).adds_gradients; };
  const auto behind = std::find_if(plan.actions.rbegin(), plan.actions.rend(), adds).base();
  plan.actions.insert(behind, {{.kind = plan::ActionKind::kSumWeights},
                               {.kind = plan::ActionKind::kAllReduce,
                                .range = all_parameters(plan.model),
                                .axes = {plan::kWorkerAxis}}});
}

}  // namespace stormo::parallel
