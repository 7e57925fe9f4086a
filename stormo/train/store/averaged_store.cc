#include <stormo/train/store/averaged_store.h>

#include <cstddef>
#include <span>
#include <utility>

#include <stormo/optim/options.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

AveragedStore::AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                             const AveragedState::Counts& counts)
    : groups_(groups), optimizer_(std::move(optimizer)), state_(*optimizer_, counts) {}

void AveragedStore::set_plan(const plan::StepPlan& plan) {
  const auto slots = static_cast<int>(optim::slot_names(optimizer_->options()).size());
  requests_ = analysis::PlanRequests(plan, {.averaged_slots = slots});
}

Status AveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  const std::vector<analysis::Collective>& sent = requests_.of(action);
  STORMO_RETURN_IF_ERROR(row_of(action.kind).averages() ? average(*ranks, sent, weight)
                                                        : mix(*ranks, sent));
  done(action);
  return {};
}

// All ranks learn the sum of their weights, too. A sum and then its factor: servers that average do
// the same, so both have the same bits where they add up in the same order.
Status AveragedStore::average(comm::Communicator& ranks,
                              const std::vector<analysis::Collective>& sent, double weight) {
  std::vector<double> sums = state_.weighted_steps(weight);
  const comm::Buffer numbers(sums);
  if (!sent.empty()) {
    STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent.front(), in_place({&numbers, 1})));
  }
  double squares = 0;
  std::size_t next = 1;
  for (AveragedState::Array& array : state_.arrays()) {
    torch::Tensor flat = array.flat().mul_(weight);
    const comm::Buffer buffer = tensor::buffer_of(flat);
    if (!sent.empty()) {
      STORMO_RETURN_IF_ERROR(check_elements(sent.at(next), buffer.count, buffer.dtype));
      STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent[next++], in_place({&buffer, 1})));
    }
    flat.mul_(1 / sums[0]);
    squares += array.take(flat);
  }
  set_consensus_squares(squares);
  state_.end_average(sums);
  return {};
}

// The weights of this rank become the mean of its own and those of its neighbours on the ring,
// which are one where there are two ranks.
Status AveragedStore::mix(comm::Communicator& ranks,
                          const std::vector<analysis::Collective>& sent) {
  const auto several = std::ssize(analysis::ring_neighbours(ranks.size(), ranks.rank()));
  std::vector<AveragedState::Array> weights = state_.weights();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    torch::Tensor mean = weights.at(i).flat();
    const torch::Tensor to = mean.repeat({several});
    const torch::Tensor from = torch::empty_like(to);
    const comm::Buffer in = tensor::buffer_of(to), out = tensor::buffer_of(from);
    STORMO_RETURN_IF_ERROR(check_elements(sent[i], mean.numel(), in.dtype));
    STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent[i], {.in = {&in, 1}, .out = {&out, 1}}));
    mean.add_(from.view({several, -1}).sum(0)).div_(static_cast<double>(several + 1));
    weights[i].take(mean);
  }
  optimizer_->round_masters();
  return {};
}

}  // namespace stormo::train
