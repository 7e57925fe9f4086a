#include <stormo/train/store/averaged_store.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <stormo/optim/options.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/bridge.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {
namespace {

/// Whether it is beside the weights until its outer update.
bool is_streamed(const plan::Action& average) {
  return average.asynchronous || average.codec != Codec::kNone;
}

/// The same with one average, of all parameters and their state.
plan::StepPlan with_all_state(plan::StepPlan plan) {
  const auto averages = [&plan](const plan::Action& a) {
    return row_of(a.kind).averages() && !averages_some(plan, a);
  };
  const auto first = std::ranges::find_if(plan.actions, averages);
  const bool has_state = first != plan.actions.end() && row_of(first->kind).averages_state;
  if (first == plan.actions.end() || has_state || averages_slots(plan)) return plan;
  *first = {.kind = plan::ActionKind::kAverage,
            .range = all_parameters(plan.model),
            .axes = first->axes,
            .every = first->every};
  plan.actions.erase(std::remove_if(first + 1, plan.actions.end(), averages), plan.actions.end());
  return plan;
}

}  // namespace

AveragedStore::AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                             const parallel::OuterOptimizer& outer,
                             const AveragedState::Counts& counts)
    : groups_(groups),
      optimizer_(std::move(optimizer)),
      state_(*optimizer_, counts),
      mixer_(state_, *optimizer_) {
  if (worker_part(groups.mesh(), 0).parts > 1) {
    comm::Communicator& ranks = *groups.over({plan::kWorkerAxis}).take_or_throw();
    worker_.emplace(ranks, optimizer_->parameters(), [this](const plan::Action& a) { done(a); });
  }
  if (outer.kind == parallel::OuterOptimizer::Kind::kNone) return;
  outer_.emplace(outer, *optimizer_);
  streamed_.emplace(state_, *outer_);
}

void AveragedStore::set_plan(const plan::StepPlan& plan) {
  const auto slots = static_cast<int>(optim::num_slots(optimizer_->options()));
  requests_ = analysis::PlanRequests(plan, {.averaged_slots = slots});
  plan_ = plan;
  if (worker_) worker_->set_plan(plan);
  squares_of_.clear();
  sent_with_state_.clear();
  const plan::StepPlan saved = with_all_state(plan);
  if (saved == plan) return;
  const analysis::PlanRequests all(saved, {.averaged_slots = slots});
  for (const plan::Action& a : saved.actions) {
    if (!row_of(a.kind).averages()) continue;
    averaged_over_ = a.axes;
    sent_with_state_ = all.of(a);
  }
}

Status AveragedStore::update(const ParameterRange& range, const StepRate& rate) {
  STORMO_RETURN_IF_ERROR(mixer_.finish());
  if (outer_) {
    outer_->before_update(rate.lr);
    streamed_->before_update();
  }
  return optimizer_->step(rate, range.first, range.last);
}

Status AveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  const plan::ActionRow& row = row_of(action.kind);
  if (row.makes.has(plan::Value::kWeights) ||
      row.places(plan::Value::kGradients, plan::Placement::kReplicate)) {
    return worker_->perform(action, weight);
  }
  STORMO_RETURN_IF_ERROR(row.outer_updates() ? outer_update(action)
                         : row.averages()    ? average(action, weight_of_replica(action, weight))
                         : row.averages_slot
                             ? average_slot(action, weight_of_replica(action, weight))
                             : mix(action));
  done(action);
  return {};
}

double AveragedStore::weight_of_replica(const plan::Action& a, double weight) {
  if (!worker_) return weight;
  double& before = samples_at_average_[{a.range.first, a.range.last, a.slot}];
  return worker_->samples() - std::exchange(before, worker_->samples());
}

void AveragedStore::zero_grad() {
  if (worker_) worker_->next_pass();
  ParameterStore::zero_grad();
}

// Where all ranks meet, an average comes before the one under way has its outer update.
Status AveragedStore::average(const plan::Action& action, double weight) {
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  if (!is_streamed(action)) return average_now(*ranks, action, weight);
  if (!outer_) return Status(Code::kBadPlan, "the run has no outer optimizer: set strategy.outer");
  const ParameterRange range = trainable_in(plan_.model, action.range);
  if (streamed_->is_under_way(range)) {
    const auto update = std::ranges::find_if(plan_.actions, [&](const plan::Action& a) {
      return row_of(a.kind).outer_updates() && a.range == action.range;
    });
    STORMO_RETURN_IF_ERROR(finish_streamed(range, update->mixing));
  }
  return streamed_->start(*ranks, range, action.codec, requests_.of(action), weight);
}

Status AveragedStore::finish_streamed(const ParameterRange& range, double mixing) {
  STORMO_ASSIGN_OR_RETURN(const double squares, streamed_->finish(range, mixing));
  note_squares(range, squares);
  return {};
}

// Behind a meeting, and before the first average, none is under way.
Status AveragedStore::outer_update(const plan::Action& action) {
  if (!outer_) return Status(Code::kBadPlan, "the run has no outer optimizer: set strategy.outer");
  const ParameterRange range = trainable_in(plan_.model, action.range);
  const auto average = std::ranges::find_if(plan_.actions, [&](const plan::Action& a) {
    return row_of(a.kind).averages() && a.range == action.range;
  });
  if (average == plan_.actions.end() || !is_streamed(*average)) {
    outer_->update(range.first, range.last);
    return {};
  }
  return streamed_->is_under_way(range) ? finish_streamed(range, action.mixing) : Status();
}

void AveragedStore::note_squares(const ParameterRange& range, double squares) {
  squares_of_[range.first] = squares;
  double sum = 0;
  for (const auto& [first, of_range] : squares_of_) sum += of_range;
  set_consensus_squares(sum);
}

// All ranks learn the sum of their weights, too. A sum and then its factor: servers that average do
// the same, so both have the same bits where they add up in the same order.
Status AveragedStore::average_now(comm::Communicator& ranks, const plan::Action& action,
                                  double weight) {
  const std::vector<analysis::Collective>& sent = requests_.of(action);
  const ParameterRange range = trainable_in(plan_.model, action.range);
  const bool with_state = row_of(action.kind).averages_state;
  const auto terms = [&] {
    return with_state ? state_.weighted_steps(weight) : std::vector<double>{weight};
  };
  weight += weight_before_;
  std::vector<double> sums = terms();
  STORMO_RETURN_IF_ERROR(add_up(ranks, sent, sums));
  if (sums[0] == 0) {  // all that had samples are lost, or the ranks of a host had none
    weight = 1;
    sums = terms();
    STORMO_RETURN_IF_ERROR(add_up(ranks, sent, sums));
  }
  const std::span behind = std::span(sent).subspan(sent.empty() ? 0 : 1);
  STORMO_ASSIGN_OR_RETURN(
      const double squares,
      average(ranks, behind, with_state ? state_.arrays() : state_.weights(range.first, range.last),
              weight, sums[0]));
  if (!averages_some(plan_, action)) note_squares(range, squares);
  weight_before_ = 0;
  with_state ? state_.end_average(sums) : state_.end_average_of_weights();
  if (outer_) outer_->end_period(range.first, range.last);
  return {};
}

// As of all of the state, so that the bits are the same.
Status AveragedStore::average_slot(const plan::Action& action, double weight) {
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  const std::vector<analysis::Collective>& sent = requests_.of(action);
  std::vector<double> sums = state_.weighted_steps(weight);
  STORMO_RETURN_IF_ERROR(add_up(*ranks, sent, sums));
  const std::span behind = std::span(sent).subspan(sent.empty() ? 0 : 1);
  const auto slot = static_cast<std::size_t>(action.slot);
  STORMO_RETURN_IF_ERROR(average(*ranks, behind, state_.slot(slot), weight, sums[0]).status());
  state_.end_average(sums);
  return {};
}

std::vector<torch::Tensor> AveragedStore::began_with() const {
  return outer_ ? outer_->period() : std::vector<torch::Tensor>();
}

void AveragedStore::go_on(std::vector<torch::Tensor> began_with, double lr) {
  if (outer_) outer_->go_on(std::move(began_with), lr);
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

// Where ranks may be lost nothing is changed before all is here.
Result<double> AveragedStore::average(comm::Communicator& ranks,
                                      std::span<const analysis::Collective> sent,
                                      std::vector<AveragedState::Array> arrays, double weight,
                                      double sum) {
  double squares = 0;
  std::size_t next = 0;
  std::vector<torch::Tensor> averages;  // where ranks may be lost
  for (AveragedState::Array& array : arrays) {
    torch::Tensor flat = array.flat().mul_(weight);
    const comm::Buffer buffer = tensor::buffer_of(flat);
    if (!sent.empty()) {
      STORMO_RETURN_IF_ERROR(check_elements(sent[next], buffer.count, buffer.dtype));
      STORMO_RETURN_IF_ERROR(perform_transfer(ranks, sent[next++], in_place({&buffer, 1})));
    }
    flat.mul_(1 / sum);
    if (plan_.commits) {
      averages.push_back(std::move(flat));
    } else {
      squares += array.take(flat);
    }
  }
  for (std::size_t i = 0; i < averages.size(); ++i) squares += arrays[i].take(averages[i]);
  return squares;
}

Status AveragedStore::mix(const plan::Action& action) {
  STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups_.over(action.axes));
  const std::vector<analysis::Collective>& sent = requests_.of(action);
  if (row_of(action.kind).tracks()) return mixer_.track(*ranks, action.algorithm, sent);
  STORMO_RETURN_IF_ERROR(mixer_.start(*ranks, action.algorithm, sent));
  return action.asynchronous ? Status() : mixer_.finish();
}

}  // namespace stormo::train
