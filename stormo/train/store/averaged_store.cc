#include <stormo/train/store/averaged_store.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <stormo/tensor/bridge.h>
#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {

// As plan::flat_groups.
AveragedStore::AveragedStore(const AxisGroups& groups, const OptimizerOptions& options,
                             std::vector<NamedParameter> parameters)
    : groups_(groups), optimizer_(options, std::move(parameters)) {
  std::map<std::pair<torch::ScalarType, bool>, std::size_t> group_of;
  for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const NamedParameter& p = optimizer_.parameters()[i];
    const auto [group, is_new] =
        group_of.try_emplace({p.tensor.scalar_type(), p.sparse}, together_.size());
    if (is_new) together_.emplace_back();
    together_[group->second].push_back(i);
  }
}

Status AveragedStore::check(const plan::StepPlan& plan) const {
  STORMO_RETURN_IF_ERROR(check_mesh(plan, groups_.mesh()));
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    if (!moves(a.kind)) continue;
    if (a.kind != plan::ActionKind::kAverage) {
      return cannot(plan, i, "ranks with parameters of their own only average them");
    }
    if (size_of(trainable_in(plan.model, a.range)) != optimizer_.parameters().size()) {
      return cannot(plan, i, "all parameters are averaged together");
    }
    STORMO_RETURN_IF_ERROR(groups_.over(a.axes).status());
  }
  return {};
}

Status AveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  Round round{.ranks = *ranks, .weight = weight};
  STORMO_RETURN_IF_ERROR(average_steps(round));
  const FusedOptimizer::Values values = optimizer_.values();
  STORMO_ASSIGN_OR_RETURN(double square, average(round, values.weights));
  for (const std::vector<torch::Tensor>& slot : values.slots) {
    STORMO_RETURN_IF_ERROR(average(round, slot).status());
  }
  optimizer_.round_masters();
  STORMO_RETURN_IF_ERROR(ranks->all_reduce(std::span<double>(&square, 1), comm::ReduceOp::kSum));
  distance_ = std::sqrt(square / ranks->size());
  return {};
}

// All ranks learn the sum of their weights, too.
Status AveragedStore::average_steps(Round& round) {
  std::vector<std::int64_t> steps = optimizer_.steps();
  std::vector<double> sums{round.weight};
  for (const std::int64_t n : steps) sums.push_back(round.weight * static_cast<double>(n));
  STORMO_RETURN_IF_ERROR(round.ranks.all_reduce(std::span<double>(sums), comm::ReduceOp::kSum));
  round.total_weight = sums[0];
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i] = std::llround(sums[i + 1] / round.total_weight);
  }
  optimizer_.set_steps(steps);
  return {};
}

/// Returns the square of this rank's distance from the averages.
Result<double> AveragedStore::average(const Round& round,
                                      const std::vector<torch::Tensor>& values) const {
  double square = 0;
  for (const std::vector<std::size_t>& members : together_) {
    std::int64_t elements = 0;
    for (const std::size_t i : members) elements += values[i].numel();
    torch::Tensor flat = torch::empty({elements}, values[members.front()].scalar_type());
    std::vector<torch::Tensor> averages;  // by member
    for (std::int64_t begin = 0; const std::size_t i : members) {
      averages.push_back(flat.narrow(0, begin, values[i].numel()).view(values[i].sizes()));
      averages.back().copy_(values[i]);
      begin += values[i].numel();
    }
    const comm::Buffer buffer = tensor::buffer_of(flat);
    STORMO_RETURN_IF_ERROR(round.ranks.run({.kind = comm::OperationKind::kAllReduce,
                                            .in = {&buffer, 1},
                                            .out = {&buffer, 1},
                                            .reduction = comm::ReduceOp::kWeightedAverage,
                                            .weight = round.weight,
                                            .total_weight = round.total_weight},
                                           Deadline::never()));
    for (std::size_t m = 0; m < members.size(); ++m) {
      torch::Tensor own = values[members[m]];
      square += (own - averages[m]).square().sum(torch::kFloat64).item<double>();
      own.copy_(averages[m]);
    }
  }
  return square;
}

}  // namespace stormo::train
