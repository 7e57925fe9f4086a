#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/model/chain.h>
#include <stormo/tensor/split.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/server_store/served_store.h>
#include <stormo/train/store/replicated_store.h>
#include <stormo/train/store/sharded_store.h>
#include <stormo/train/world/axis_groups.h>
#include <stormo/train/world/stage_link.h>

namespace stormo::train {

/// What one rank has of a model that is cut over ranks, with its optimizer state: the parameters of
/// its stage of a pipeline, and its slices of those that the model splits. Copies of a part average
/// its gradients, or now and then the part itself, or each has a shard of it; or servers have it.
/// Of these a parameter that several stages read is the first one's, and one that is not split the
/// first rank's of its stage, which gives the others the values that it pulls. Between steps,
/// parameters of other stages have no memory, and the module has slices in place of split
/// parameters; gather() gathers the whole.
class ModelParallelStore final : public ParameterStore {
 public:
  /// `groups` is borrowed and has a group over each of plan::model_axes(), and those of
  /// AxisGroups::of_tied(). `plan` is that of all ranks. `module` is a model::Chain where the plan
  /// has plan::kTensorAxis. `bring`: see make_store(); empty where the module has values. `serve`
  /// makes the store of this rank's part where the plan has it on servers. `outer`: see
  /// AveragedStore. `kept`: in place of a new optimizer, that of a store of this stage before,
  /// where copies of a part are replicas; null: none.
  using Serve = std::function<std::unique_ptr<ServedStore>(std::vector<NamedParameter> part)>;
  ModelParallelStore(const AxisGroups& groups, const plan::StepPlan& plan,
                     const std::shared_ptr<torch::nn::Module>& module,
                     const OptimizerOptions& options, const parallel::OuterOptimizer& outer = {},
                     const MaterializeSegment& bring = {}, const Serve& serve = {},
                     std::unique_ptr<Optimizer> kept = {});
  ~ModelParallelStore() override;

  void set_plan(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override { own_->begin_backward(last); }
  Status perform(const plan::Action& action, double weight) override;
  Status make_readable(plan::Range segments) override { return own_->make_readable(segments); }
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& range, const StepRate& rate) override {
    return own_->update(range, rate);
  }
  void zero_grad() override;
  GatheredParameters gather() override;
  GatheredParameters gather_segments(plan::Range segments) override;
  void keep_values() override;
  Status share_state() override { return own_->share_state(); }
  Status finish_gradients() override { return own_->finish_gradients(); }
  Optimizer& optimizer() override { return own_->optimizer(); }
  std::unique_ptr<Optimizer> take_optimizer() override { return own_->take_optimizer(); }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override;
  TensorMap residuals() const override { return own_->residuals(); }
  void keep_residuals(TensorMap kept) override { own_->keep_residuals(std::move(kept)); }

 private:
  /// A parameter of the module, by its number in the plan.
  struct Parameter {
    NamedParameter named;
    std::vector<int> stages;               // that have it; the first one owns it
    bool has_storage = true;               // of its own, which can be freed
    bool came_without_memory = false;      // until its values were brought
    plan::Split split = {};                // units 0: ranks of a stage have the whole
    std::vector<std::int64_t> whole = {};  // sizes
    torch::Tensor slice = {};              // of this rank, if it is split and this stage has it
  };
  class Shown;

  ModelParallelStore(const AxisGroups& groups, const plan::StepPlan& plan,
                     const std::shared_ptr<torch::nn::Module>& module);
  plan::Range all() const { return {0, static_cast<int>(reads_.size()) - 1}; }
  int stage() const { return stage_; }
  bool is_own(const Parameter& p) const { return p.stages.front() == stage(); }
  bool has(const Parameter& p) const;
  /// Whether this rank is the one of its stage whose copy of `p` counts.
  bool is_first(const Parameter& p) const {
    return p.slice.defined() || !split_ || split_->part().index == 0;
  }
  /// Whether it is the first of its stage that has some of `p`.
  bool has_first_units(const Parameter& p) const;
  const Parameter& parameter(std::string_view name) const;
  /// Whether this rank's values of it count in a sum over the ranks of a replica.
  bool counts(const std::string& name) const {
    const Parameter& p = parameter(name);
    return is_own(p) && is_first(p);
  }
  /// Brings the values of a segment, and keeps this rank's part of them.
  void add_segment(const plan::ModelShape& model, std::size_t segment,
                   const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                   const MaterializeSegment& bring);
  void take_slices();
  /// The module has all that `segments` read; back to this rank's part of it.
  void gather(plan::Range segments);
  void release(plan::Range segments);
  std::vector<std::size_t> read_by(plan::Range segments) const;
  void join_slices(const std::vector<std::size_t>& parameters);
  void compute_alone(plan::Range segments, bool alone);
  /// This rank's term of a sum over ranks of a replica; null: it has none.
  torch::Tensor* term_of(Parameter& p, bool tied);
  Status add_up_terms(const plan::Action& action);
  void replicate(const plan::StepPlan& plan, const torch::nn::Module& module,
                 const OptimizerOptions& options, const parallel::OuterOptimizer& outer,
                 std::unique_ptr<Optimizer> kept);
  void shard(const plan::StepPlan& plan, const std::shared_ptr<torch::nn::Module>& module,
             const OptimizerOptions& options, const MaterializeSegment& keep_part);
  void serve_part(const plan::StepPlan& plan, const torch::nn::Module& module, const Serve& serve);
  /// What the actions of this rank's part of a plan send.
  void find_requests(const plan::StepPlan& own);
  /// Of what servers have: a rank that has pulled values gives them to others.
  Status give(const analysis::Collective& values);
  /// Of the gradients that count on this rank.
  Result<double> squares();
  Result<double> norm_over_stages(double squares) const;
  /// What a copy of this part saves, of the tensors that this rank has.
  std::vector<TensorPiece> own_pieces() const;

  const AxisGroups& groups_;
  std::vector<std::string> axes_;  // over which the model is cut
  int stage_ = 0;
  comm::Communicator* tensor_ = nullptr;  // computes layers together
  std::optional<StageLink> link_;
  std::optional<tensor::TensorParallelGroup> split_;
  std::shared_ptr<model::Chain> chain_;  // null: nothing is split
  std::vector<std::vector<int>> reads_;  // parameters, by segment
  std::vector<Parameter> parameters_;
  std::map<std::string, std::size_t, std::less<>> numbers_;  // of the parameters, by name
  std::unique_ptr<ParameterStore> own_;                      // of this rank's part
  ReplicatedStore* replicas_ = nullptr;  // own_, if copies of the part are replicas
  ServedStore* served_ = nullptr;        // own_, if servers have the part
  FusedOptimizer* fused_ = nullptr;      // of what is no shard
  ShardedStore* shards_ = nullptr;       // own_, if they have shards
  bool is_sharded_ = false;              // this rank's part, over others that have it
  bool saves_ = false;                   // replicas have the same: one of them saves it
  std::shared_ptr<void> whole_shards_;   // while segments are whole
  bool kept_ = false;
  analysis::PlanRequests requests_;
  std::vector<analysis::Collective> given_;  // of pulls: what they give to other ranks
};

}  // namespace stormo::train
