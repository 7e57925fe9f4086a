#include <stormo/train/store/averaged_store.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>
#include <stormo/tensor/bridge.h>

namespace stormo::train {
namespace {

/// The weights of this rank become the mean of its own and those of its neighbours on the ring.
/// Both neighbours are one where there are two ranks. An all_to_all that only neighbours take part
/// in.
Status mix(comm::Communicator& ranks, AveragedState& state) {
  const auto n = static_cast<std::size_t>(ranks.size()),
             me = static_cast<std::size_t>(ranks.rank());
  if (n == 1) return {};
  std::set<std::size_t> neighbours = {(me + n - 1) % n, (me + 1) % n};
  const auto several = static_cast<std::int64_t>(neighbours.size());
  for (AveragedState::Array& weights : state.weights()) {
    torch::Tensor mean = weights.flat();
    const torch::Tensor sent = mean.repeat({several});
    const torch::Tensor received = torch::empty_like(sent);
    std::vector<std::int64_t> counts(n);
    for (const std::size_t r : neighbours) counts[r] = mean.numel();
    STORMO_RETURN_IF_ERROR(
        ranks.all_to_all(tensor::buffer_of(sent), counts, tensor::buffer_of(received), counts));
    mean.add_(received.view({several, -1}).sum(0)).div_(static_cast<double>(several + 1));
    weights.take(mean);
  }
  return {};
}

}  // namespace

AveragedStore::AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                             const AveragedState::Counts& counts)
    : groups_(groups), optimizer_(std::move(optimizer)), state_(*optimizer_, counts) {}

// All ranks learn the sum of their weights, too. A sum and then its factor: servers that average do
// the same, so both have the same bits where they add up in the same order.
Status AveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  if (action.kind == plan::ActionKind::kMix) {
    STORMO_RETURN_IF_ERROR(mix(*ranks, state_));
    optimizer_->round_masters();
    done(action);
    return {};
  }
  std::vector<double> sums = state_.weighted_steps(weight);
  STORMO_RETURN_IF_ERROR(ranks->all_reduce(std::span<double>(sums), comm::ReduceOp::kSum));
  const double total_weight = sums[0];
  const std::string algorithm = averaging_algorithm(groups_.mesh());
  double squares = 0;
  for (AveragedState::Array& array : state_.arrays()) {
    torch::Tensor flat = array.flat().mul_(weight);
    const comm::Buffer buffer = tensor::buffer_of(flat);
    STORMO_RETURN_IF_ERROR(ranks->run({.kind = comm::OperationKind::kAllReduce,
                                       .in = {&buffer, 1},
                                       .out = {&buffer, 1},
                                       .reduction = comm::ReduceOp::kSum,
                                       .algorithm = algorithm},
                                      Deadline::never()));
    flat.mul_(1 / total_weight);
    squares += array.take(flat);
  }
  set_consensus_squares(squares);
  state_.end_average(sums);
  return {};
}

}  // namespace stormo::train
