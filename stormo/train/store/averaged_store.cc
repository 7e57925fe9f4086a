#include <stormo/train/store/averaged_store.h>

#include <cstddef>
#include <span>
#include <utility>

#include <stormo/optim/options.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

AveragedStore::AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                             const parallel::OuterOptimizer& outer,
                             const AveragedState::Counts& counts)
    : groups_(groups),
      optimizer_(std::move(optimizer)),
      state_(*optimizer_, counts),
      mixer_(state_, *optimizer_) {
  if (outer.kind != parallel::OuterOptimizer::Kind::kNone) outer_.emplace(outer, *optimizer_);
}

void AveragedStore::set_plan(const plan::StepPlan& plan) {
  const auto slots = static_cast<int>(optim::slot_names(optimizer_->options()).size());
  requests_ = analysis::PlanRequests(plan, {.averaged_slots = slots});
  sent_with_state_.clear();
  plan::StepPlan with_state = plan;
  for (plan::Action& a : with_state.actions) {
    if (!row_of(a.kind).averages()) continue;
    averaged_over_ = a.axes;
    if (!row_of(a.kind).averages_state) a.kind = plan::ActionKind::kAverage;
  }
  if (with_state == plan) return;
  const analysis::PlanRequests all(with_state, {.averaged_slots = slots});
  for (const plan::Action& a : with_state.actions) {
    if (row_of(a.kind).averages()) sent_with_state_ = all.of(a);
  }
}

Status AveragedStore::update(const ParameterRange& range, const StepRate& rate) {
  STORMO_RETURN_IF_ERROR(mixer_.finish());
  if (outer_) outer_->before_update(rate.lr);
  return optimizer_->step(rate, range.first, range.last);
}

Status AveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  const plan::ActionRow& row = row_of(action.kind);
  if (row.outer_updates()) {
    if (!outer_)
      return Status(Code::kBadPlan, "the run has no outer optimizer: set strategy.outer");
    outer_->update();
  } else {
    STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
    STORMO_RETURN_IF_ERROR(row.averages()
                               ? average(*ranks, requests_.of(action), weight, row.averages_state)
                               : mix(*ranks, action));
  }
  done(action);
  return {};
}

// All ranks learn the sum of their weights, too. A sum and then its factor: servers that average do
// the same, so both have the same bits where they add up in the same order.
Status AveragedStore::average(comm::Communicator& ranks,
                              const std::vector<analysis::Collective>& sent, double weight,
                              bool with_state) {
  std::vector<double> sums =
      with_state ? state_.weighted_steps(weight) : std::vector<double>{weight};
  STORMO_RETURN_IF_ERROR(add_up(ranks, sent, sums));
  const std::span behind = std::span(sent).subspan(sent.empty() ? 0 : 1);
  STORMO_ASSIGN_OR_RETURN(
      const double squares,
      average(ranks, behind, with_state ? state_.arrays() : state_.weights(), weight, sums[0]));
  set_consensus_squares(squares);
  with_state ? state_.end_average(sums) : state_.end_average_of_weights();
  if (outer_) outer_->end_period();
  return {};
}

// Each rank counts alike. The weights are equal already, and keep their bits.
Status AveragedStore::share_state() {
  mixer_.restart();
  if (sent_with_state_.empty()) return {};
  const torch::NoGradGuard no_grad;
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(averaged_over_));
  std::vector<double> sums = state_.weighted_steps(1);
  STORMO_RETURN_IF_ERROR(add_up(*ranks, sent_with_state_, sums));
  const std::span of_slots = std::span(sent_with_state_).subspan(1 + state_.weights().size());
  STORMO_RETURN_IF_ERROR(average(*ranks, of_slots, state_.slots(), 1, sums[0]).status());
  state_.end_average(sums);
  return {};
}

Status AveragedStore::add_up(comm::Communicator& ranks, std::span<const analysis::Collective> sent,
                             std::vector<double>& sums) {
  if (sent.empty()) return {};
  const comm::Buffer numbers(sums);
  return perform_transfer(ranks, sent.front(), in_place({&numbers, 1}));
}

Result<double> AveragedStore::average(comm::Communicator& ranks,
                                      std::span<const analysis::Collective> sent,
                                      std::vector<AveragedState::Array> arrays, double weight,
                                      double sum) {
  double squares = 0;
  std::size_t next = 0;
  for (AveragedState::Array& array : arrays) {
    torch::Tensor flat = array.flat().mul_(weight);
    const comm::Buffer buffer = tensor::buffer_of(flat);
    if (!sent.empty()) {
      STORMO_RETURN_IF_ERROR(check_elements(sent[next], buffer.count, buffer.dtype));
      STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent[next++], in_place({&buffer, 1})));
    }
    flat.mul_(1 / sum);
    squares += array.take(flat);
  }
  return squares;
}

Status AveragedStore::mix(comm::Communicator& ranks, const plan::Action& action) {
  const std::vector<analysis::Collective>& sent = requests_.of(action);
  if (row_of(action.kind).tracks()) return mixer_.track(ranks, action.algorithm, sent);
  STORMO_RETURN_IF_ERROR(mixer_.start(ranks, action.algorithm, sent));
  return action.asynchronous ? Status() : mixer_.finish();
}

}  // namespace stormo::train
