#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/population/model_exchange.h>
#include <stormo/train/store/averaged_state.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// How good the model is that the module has. Not collectives. Without them all models are equally
/// good.
struct Judge {
  struct Verdict {
    double loss = 0;
    torch::Tensor predicted = {};  ///< int64: classes of all samples; undefined: there are none
  };
  /// A loss on samples of this rank's tournaments.
  std::function<double()> in_tournament = [] { return 0.0; };
  /// On the samples by which all ranks judge.
  std::function<Verdict()> of_all = [] { return Verdict(); };
};

/// Members of a population: parameters and optimizer state of its own on every rank, which each
/// rank updates with its own gradients.
///
/// kTournament sends all of it to the rank's neighbours; a rank goes on with the best of what it
/// gets and its own, which it keeps if none is better. A loss that is not a number is worse than
/// any other. kExchangeModels sends the parameters, of which neighbours keep copies.
///
/// gather() shows the model of the best member, and pieces() are that member's. residuals() are a
/// rank's own model and state, so that a checkpoint has all of them. They are taken up by as many
/// ranks only; others begin with the best model. Copies are made again then.
class PopulationStore final : public ParameterStore {
 public:
  /// Of the parameters of another member.
  struct Copy {
    Rank member = 0;
    std::int64_t version = 0;            ///< updates that its member had made then
    std::vector<torch::Tensor> weights;  ///< by parameter
  };
  /// Of copies, when they are used.
  struct Ages {
    std::int64_t uses = 0;
    std::int64_t sum = 0, max = 0;  ///< steps since the version
  };

  /// `groups` is borrowed. `optimizer`: of the parameters.
  PopulationStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer);

  void set_judge(Judge judge) { judge_ = std::move(judge); }
  /// Finds the best member, if some model has changed since. A collective.
  Status find_best();

  // Not collectives.
  /// What find_best() has found last.
  Rank best() const { return best_; }
  const std::vector<double>& losses() const { return losses_; }  ///< by member
  /// The share of samples of which two members predict other classes, a mean over all pairs.
  std::optional<double> churn() const { return churn_; }
  std::int64_t exchanges() const { return exchanges_; }  ///< tournaments, or of models
  std::int64_t taken() const { return taken_; }  ///< tournaments in which it took another model
  std::int64_t updates() const { return updates_; }
  const std::vector<Copy>& copies() const { return copies_; }
  /// While the result lives, the module has the parameters of a copy. In a step, where nothing is
  /// left to do for a backward.
  GatheredParameters show(const Copy& copy);
  const Ages& ages() const { return ages_; }

  void set_plan(const plan::StepPlan& plan) override;
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override { return optimizer_->gradient_norm(); }
  Status update(const ParameterRange& range, const StepRate& rate) override;
  Optimizer& optimizer() override { return *optimizer_; }

  GatheredParameters gather() override;
  void keep_values() override;
  Status share_state() override { return find_best(); }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_->load_state(read); }
  TensorMap residuals() const override;
  void keep_residuals(TensorMap kept) override;

 private:
  Result<std::vector<SentModel>> exchange(const plan::Action& action, std::int64_t round,
                                          const SentModel& own);
  SentModel own_model();
  void take(const SentModel& model);
  Status play(const plan::Action& action);
  Status take_copies(const plan::Action& action, std::int64_t round);
  Status compare(const torch::Tensor& predicted);
  torch::Tensor own_weights(std::size_t parameter) const;
  GatheredParameters show(const std::vector<torch::Tensor>& weights);
  void show_own();

  const AxisGroups& groups_;
  std::unique_ptr<FusedOptimizer> optimizer_;
  AveragedState state_;
  Judge judge_;
  plan::Mixing topology_;
  analysis::PlanRequests requests_;
  ModelExchange models_;
  std::vector<Copy> copies_;
  bool lacks_copies_ = false;       // that it had when the checkpoint was made
  std::vector<torch::Tensor> own_;  // by parameter, while the module shows others
  bool has_best_ = false;           // no model has changed since
  Rank best_ = 0;
  std::vector<double> losses_;
  std::optional<double> churn_;
  std::int64_t exchanges_ = 0, taken_ = 0, updates_ = 0;
  Ages ages_;
};

}  // namespace stormo::train
