#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/worker_gradients.h>
#include <stormo/train/store/averaged_state.h>
#include <stormo/train/store/mixer.h>
#include <stormo/train/store/outer_state.h>
#include <stormo/train/store/streamed_averages.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// Parameters and optimizer state of its own on every rank, which each rank updates with its own
/// gradients, and which kAverage makes equal: weights and state w become sum(n_r * w_r) / sum(n_r),
/// with n_r the samples of rank r since the last average. Of 16-bit parameters the master weights
/// are averaged. The numbers of steps that rules count are averaged and rounded; they differ only
/// where a rank had no samples in some step. One all-reduce for the weights and for each slot of
/// the optimizer, of each dtype; the memory for it is as large as the parameters. Where replicas
/// are cut, they are those of this rank's part, which other replicas have too.
///
/// Where the mesh has plan::kWorkerAxis a replica is the ranks of that axis, which average their
/// gradients, and n_r are the samples of all of them.
///
/// kAverageParameters leaves the optimizer's state and its steps to each rank, until kAverageState,
/// or else share_state(). It may be of some parameters. kOuterUpdate is that of an OuterState;
/// those of averages that are asynchronous, or in a codec, are StreamedAverages. kMix and kTrack
/// are those of a Mixer, which share_state() restarts. Ranks without samples since the last average
/// count alike if all of them are. In a plan that commits an average is taken when all of it is
/// there.
class AveragedStore final : public ParameterStore {
 public:
  /// `groups` is borrowed. `optimizer`: of the parameters. `outer`: for plans with an outer_update.
  /// `counts`: see AveragedState.
  AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                const parallel::OuterOptimizer& outer = {},
                const AveragedState::Counts& counts = {});

  void set_plan(const plan::StepPlan& plan) override;
  Status perform(const plan::Action& action, double weight) override;
  /// Where the plan mixes: what neighbours have sent is here.
  Status finish_gradients() override { return mixer_.receive(); }
  Result<double> gradient_norm() override { return optimizer_->gradient_norm(); }
  Status update(const ParameterRange& range, const StepRate& rate) override;
  void zero_grad() override;
  Status share_state() override;
  TensorMap residuals() const override { return streamed_ ? streamed_->residuals() : TensorMap(); }
  void keep_residuals(TensorMap kept) override {
    if (streamed_) streamed_->keep_residuals(std::move(kept));
  }
  Optimizer& optimizer() override { return *optimizer_; }
  std::unique_ptr<Optimizer> take_optimizer() override { return std::move(optimizer_); }

  // Of a period in which the ranks change, so that another store goes on with it. No collectives.
  /// See OuterState::period(); empty without an outer optimizer.
  std::vector<torch::Tensor> began_with() const;
  /// See OuterState::go_on().
  void go_on(std::vector<torch::Tensor> began_with, double lr);
  /// In the next average this rank counts for so many samples more than perform() says.
  void count_before(std::int64_t samples) { weight_before_ = static_cast<double>(samples); }

 private:
  /// Of an average: the samples of the whole replica since the last one of this range and slot, of
  /// which `weight` are this rank's.
  double weight_of_replica(const plan::Action& action, double weight);
  Status average(const plan::Action& action, double weight);
  Status average_now(comm::Communicator& ranks, const plan::Action& action, double weight);
  Status average_slot(const plan::Action& action, double weight);
  Status outer_update(const plan::Action& action);
  Status finish_streamed(const ParameterRange& range, double mixing);
  /// Of the replicas from the average of the range; of all parameters it is the sum of the last
  /// ones.
  void note_squares(const ParameterRange& range, double squares);
  /// Adds up over the ranks; each has its own where nothing is sent.
  Status add_up(comm::Communicator& ranks, std::span<const analysis::Collective> sent,
                std::vector<double>& sums);
  /// `sum`: of the weights of all ranks. Returns the squares that Array::take() does.
  Result<double> average(comm::Communicator& ranks, std::span<const analysis::Collective> sent,
                         std::vector<AveragedState::Array> arrays, double weight, double sum);
  Status mix(const plan::Action& action);

  const AxisGroups& groups_;
  std::unique_ptr<FusedOptimizer> optimizer_;
  std::optional<WorkerGradients> worker_;  // nothing: a replica is one rank, or is cut
  std::map<std::tuple<int, int, int>, double> samples_at_average_;  // of a range and slot
  AveragedState state_;
  Mixer mixer_;
  std::optional<OuterState> outer_;           // nothing: there is no outer optimizer
  std::optional<StreamedAverages> streamed_;  // likewise
  std::map<std::size_t, double> squares_of_;  // by the first parameter of a range
  double weight_before_ = 0;                  // of count_before()
  plan::StepPlan plan_;
  analysis::PlanRequests requests_;
  /// What an average of parameters and state sends; empty: the plan has such ones.
  std::vector<analysis::Collective> sent_with_state_;
  std::vector<std::string> averaged_over_;  // axes
};

}  // namespace stormo::train
