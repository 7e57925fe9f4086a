#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stormo/plan/step_plan.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/parameters/model_parameters.h>

#include "tests/unit/train/plan_run.h"

// Steps that overlap: what ranks do in them, and the same training by one process, where each batch
// is computed with parameters that lack the updates of some batches before it.
namespace stormo::test {

/// All batches are finished after this step, and after the last one.
inline constexpr std::int64_t kMeets = 4;

inline bool meets(std::size_t step, std::size_t steps) {
  return step + 1 == steps || static_cast<std::int64_t>(step + 1) % kMeets == 0;
}

/// What one rank does in all steps, as the rule of Action::delay says.
inline std::vector<plan::Action> expected_trace(const plan::StepPlan& mine, std::size_t steps) {
  std::vector<plan::Action> out;
  const int longest = longest_delay(mine);
  int begun = 0;  // the first batch that is under way
  for (int step = 0; step < static_cast<int>(steps); ++step) {
    const bool ends = meets(static_cast<std::size_t>(step), steps);
    for (int later = 0; later <= (ends ? longest : 0); ++later) {
      for (const plan::Action& a : mine.actions) {
        const int batch = step + later - a.delay;
        const bool is_there = begun <= batch && batch <= step;
        if (a.kind == plan::ActionKind::kAgree ? ends && later == longest : is_there)
          out.push_back(a);
      }
    }
    if (ends) begun = step + 1;
  }
  return out;
}

struct Oracle {
  std::vector<double> losses;
  Values values;
};

/// `delay`: by parameter of the model, how many batches its updates are behind those that are
/// computed.
inline Oracle train_with_delays(const PlanRun& run, const std::vector<int>& delay) {
  const torch::NoGradGuard no_grad;
  const auto chain = run.problem.model(3);
  std::vector<train::NamedParameter> parameters = train::trainable_parameters(*chain);
  std::vector<std::size_t> numbers;  // of the trainable ones, in the model
  for (std::size_t i = 0; const plan::ParameterShape* p : flatten(run.plan.model)) {
    if (p->trainable) numbers.push_back(i);
    ++i;
  }
  train::FusedOptimizer optimizer(run.options.optimizer, parameters);
  const auto copies = [&] {
    std::vector<torch::Tensor> out;
    for (const train::NamedParameter& p : parameters) out.push_back(p.tensor.clone());
    return out;
  };
  const auto show = [&](const std::vector<torch::Tensor>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) parameters[i].tensor.copy_(values[i]);
  };
  Oracle out;
  std::vector<std::vector<torch::Tensor>> versions = {copies()};  // newest last
  for (std::size_t step = 0; step < run.batches.size(); ++step) {
    const std::vector<torch::Tensor> newest = copies();
    std::vector<torch::Tensor> seen;
    for (std::size_t i = 0; i < newest.size(); ++i) {
      const auto back = std::min(versions.size() - 1, static_cast<std::size_t>(delay[numbers[i]]));
      seen.push_back(versions[versions.size() - 1 - back][i]);
    }
    show(seen);
    const Batch& batch = run.batches[step];
    {
      const torch::AutoGradMode with_gradients(true);
      const torch::Tensor loss = model::cross_entropy(chain->forward(batch.x), batch.target);
      out.losses.push_back(loss.item<double>() * static_cast<double>(batch.x.size(0)));
      loss.backward();
    }
    show(newest);
    throw_if_error(optimizer.step({.lr = run.options.optimizer.lr}, 0, parameters.size()));
    optimizer.zero_grad();
    if (meets(step, run.batches.size())) versions.clear();
    versions.push_back(copies());
  }
  out.values = values_of(*chain);
  return out;
}

}  // namespace stormo::test
