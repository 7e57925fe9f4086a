#pragma once

#include <cstdint>
#include <functional>

#include <torch/torch.h>

#include <stormo/model/loss.h>
#include <stormo/plan/project.h>

#include "tests/unit/train/plan_run.h"

// Vertical sharding: what each rank has of the samples.
namespace stormo::test {

using Loss = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;

/// The rank loads its columns, and rank `labels` the targets, of which it computes the loss for
/// all.
inline void take_columns(PlanRank& rank, int labels, const Loss& loss) {
  const plan::StepPlan& plan = rank.run.plan;
  const plan::Part part = slice_of(plan.mesh, rank.rank());
  const plan::Split& split = flatten(plan.model).front()->split;
  rank.task.loss = loss;
  rank.task.split_loss = [loss, labels](const auto& output, const auto& target, const auto& ranks) {
    return model::owned_loss(
        output, [&](const auto& all) { return loss(all, target); }, ranks, labels);
  };
  if (part.parts == 1) return;
  rank.load = [&rank, labels, part, mine = share(split, part.parts, part.index)] {
    const Batch& all = rank.run.batches[rank.next++];
    const bool labelled = part.index == labels;
    return Result<data::Batch>(data::Batch{all.x.narrow(1, mine.begin, mine.size()),
                                           labelled ? all.target : torch::Tensor()});
  };
}

}  // namespace stormo::test
