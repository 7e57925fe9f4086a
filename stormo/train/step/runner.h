#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/model/chain.h>
#include <stormo/plan/assigned/assigned_plan.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/autograd/two_part_backward.h>
#include <stormo/train/autograd/weight_versions.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/step/shard_sums.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// What one step did on this rank.
struct StepOutcome {
  /// Over this rank's samples, before the update. The host reads it from the device of the
  /// parameters once a step, before kAgree or at the end.
  double loss_sum = 0;
  std::int64_t samples = 0;  ///< of whose loss this rank knows, may be 0
  bool skipped = false;      ///< no update, on any rank: a gradient overflowed in float16
  /// Of the averaged gradient, before clipping; where the plan computes it.
  std::optional<double> gradient_norm = {};
  double mean_loss() const { return samples > 0 ? loss_sum / static_cast<double>(samples) : 0; }
};

/// Which actions that are not for every step a step does. A period of n steps, n being
/// Action::every, begins with its pull or exchange and ends with its push, average or agree. These
/// may be some steps later, see Action::offset.
struct StepAt {
  std::int64_t number = 1;  ///< from 1; periods are counted from there
  bool closes = true;       ///< ends the periods of all actions, whatever its number is
};

/// What a Runner works with; all but the functions borrowed for its life.
struct RunnerParts {
  /// This rank's part of the next global batch; it may be empty.
  std::function<Result<data::Batch>()> load;
  Task task;
  ParameterStore& store;
  LaneTimer& lanes;
  /// Called before every update or pull: waits until whoever still reads the state has done so.
  std::function<void()> before_update = [] {};
  /// kAgree: all ranks learn what this one has done.
  std::function<Status(const StepOutcome&)> agree = [](const StepOutcome&) { return Status(); };
  /// kCommit: all reduced gradients are here. When it returns, all ranks have them; after a failure
  /// the updates are left out, see Runner::apply_updates().
  std::function<Status()> commit = [] { return Status(); };
  GradScaler* scaler = nullptr;  ///< multiplies the loss, where the plan scales it
  double clip_norm = 0;          ///< for kClip
  /// For plans with logical shards: how many samples the global batch has of which load() has given
  /// a part, and what is done before a shard is computed, such as seeding its random numbers.
  std::function<std::int64_t()> global_samples = {};
  std::function<void(int shard)> begin_shard = [](int) {};
  /// Told of every action when it is done on this rank, in order; may be empty.
  DoneAction done = {};
};

/// Executes one rank's part of a StepPlan, action by action, and records an Event for each one. It
/// knows nothing of strategies: what differs between them is in the plan, and where parameters lie
/// is the ParameterStore's.
class Runner {
 public:
  /// `plan` is that of all ranks, of which the Runner executes the part of this rank (project()).
  /// kBadPlan for a plan that does not verify, or that needs what the task does not offer: a module
  /// that is no model::Chain computes all of its segments at once.
  static Result<std::unique_ptr<Runner>> create(const plan::StepPlan& plan, Rank rank,
                                                RunnerParts parts);

  /// Does the actions of another plan from the next step on, of the same model and mesh. kBadPlan
  /// as create(); then the plan stays. `shards`: the logical shards of this rank, possibly none,
  /// where other ranks compute than all of the plan (plan/computing_ranks.h).
  Status set_plan(const plan::StepPlan& plan, std::optional<plan::ShardRange> shards = {});
  /// Does the step of `plan` without the ranks that it has lost, from the next one on: this rank's
  /// work, and others'. `load` gives the part that another replica has of the next global batch,
  /// RunnerParts::load that of this rank's own. kBadPlan as create(); then the plan stays.
  using LoadReplica = std::function<Result<data::Batch>(int replica)>;
  Status set_plan(const plan::AssignedPlan& plan, LoadReplica load);
  /// The plan of all ranks.
  const plan::StepPlan& plan() const { return whole_; }

  /// Does the updates of the last step, of which commit() has failed: by the gradients that it has
  /// left, which are gone afterwards.
  Status apply_updates();

  /// One step; by default all actions are done. Exceptions of libtorch and of the task pass
  /// through. Gradients are gone afterwards, unless steps overlap; after a failure there is no
  /// further step.
  Result<StepOutcome> step(double learning_rate, const StepAt& at = {});

 private:
  /// Segments that were computed together, between tensors that cut the graph.
  struct Piece {
    plan::Range segments;
    /// The output of the piece before, here or on another stage, where its gradient arrives.
    torch::Tensor input = {};
    torch::Tensor output = {};
    bool wants_gradient = false;  ///< of its output
    /// Of a piece that is computed again: what it was computed from, and the state of the device's
    /// generator and, if that is another one, of the host's.
    torch::Tensor kept = {}, generator = {}, host_generator = {};
  };
  struct MicroBatch {
    data::Batch batch;
    std::vector<Piece> pieces;
    torch::Tensor loss;
    /// Ranges whose backward_weight is left.
    std::vector<std::pair<plan::Range, TwoPartBackward>> weights;
  };

  /// A batch from its load until the last action for it.
  struct BatchUnderWay {
    std::int64_t number = 0;  // of loads before
    std::vector<MicroBatch> micro_batches;
    std::int64_t samples = 0;  // of this rank
    std::int64_t counted = 0;  // of those that its gradients are a mean of, or a term of the mean
    double learning_rate = 0;
    WeightVersions::Version weights = {};  // where steps overlap: until its update
  };

  /// Of an assigned plan. This rank's part of it is an ordinary one, with the micro-batches of all
  /// replicas one after the other; what is special are batches, where moves go, and scales. A stage
  /// on which n ranks compute averages n gradients that are all equally heavy. So each is n times
  /// its term of the mean over the global batch, and a gradient that goes to a stage with other
  /// ranks is scaled.
  struct Assigned {
    std::vector<int> loads;  // replicas of whose batches this rank computes something, and its own
    int own = 0;             // replica
    int micro_batches = 1;   // of one
    bool computes = false;
    std::vector<double> computing;         // by stage: ranks that do
    std::vector<std::vector<Rank>> ranks;  // by action
    LoadReplica load;
  };

  Runner(Rank rank, RunnerParts parts) : rank_(rank), parts_(std::move(parts)) {}
  Status adopt(const plan::StepPlan& plan, plan::StepPlan own,
               std::optional<plan::ShardRange> shards);
  Status check(const plan::StepPlan& plan, bool has_segments) const;
  void look_ahead();
  void take_shards(std::optional<plan::ShardRange> shards);
  Status act(const plan::Action& action);
  using Perform = Status (Runner::*)(const plan::Action&);
  static Perform perform_of(const plan::ActionRow& row);
  Status execute(const plan::Action& action);
  Status perform_in_store(const plan::Action& action);
  Status finish_batches();
  BatchUnderWay* batch_of(const plan::Action& action);
  Status load(const plan::Action& action);
  Status cut_into_shards(const data::Batch& batch);
  Status load_assigned();
  Status forward(const plan::Action& action);
  Status run_without_graph(Piece& piece, const torch::Tensor& x) const;
  torch::Tensor compute(plan::Range segments, torch::Tensor x) const;
  Status loss(const plan::Action& action);
  void add_loss(double value, std::int64_t samples);
  Status not_finite(double loss, const std::string& where) const;
  Status read_losses();
  Status commit(const plan::Action& action);
  Status read_from_device();
  Status agree(const plan::Action& action);
  std::string where_not_finite(const MicroBatch& at) const;
  Status recompute(const plan::Action& action);
  Status backward(const plan::Action& action);
  Status backward_weight(const plan::Action& action);
  torch::Tensor take_loss(MicroBatch& m);
  double share_of(const MicroBatch& m) const;
  torch::Tensor scaled(torch::Tensor gradient, int boundary) const;
  Result<torch::Tensor> input_of(const plan::Action& action, Piece& piece);
  Result<torch::Tensor> gradient_of(const plan::Action& action);
  std::uint64_t key_of(plan::Value value, int boundary, int micro_batch) const;
  Status move(const plan::Action& action);
  std::pair<Rank, Rank> ranks_of_move(const plan::Action& action) const;
  Result<torch::Tensor> moved(plan::Value value, int boundary, int micro_batch);
  Status norm(const plan::Action& action);
  Status unscale(const plan::Action& action);
  Status clip(const plan::Action& action);
  StepRate rate() const { return {batch_->learning_rate, gradient_scale_, outcome_.mean_loss()}; }
  Status update(const plan::Action& action);
  /// Of the parameters for the present batch; see Event::weights.
  std::int64_t version() const { return batch_->weights ? batch_->weights->number : -1; }
  /// Of what this rank gives in a reduction; 0: nothing.
  double weight() const;
  double weight_of_exchange();
  MicroBatch& at(const plan::Action& action) {
    return batch_->micro_batches[static_cast<std::size_t>(action.micro_batch)];
  }

  plan::StepPlan whole_;  // of all ranks
  plan::StepPlan plan_;   // of this rank
  Rank rank_;
  RunnerParts parts_;
  std::shared_ptr<model::Chain> chain_;  // of the plan's segments; null: the module is one piece
  bool is_cut_ = false;                  // ranks have parts of it: only segments are called
  std::optional<tensor::ContextGroup> context_;  // this rank has some positions of its samples
  std::optional<tensor::Grid> grid_;             // it has some of their places
  double loss_share_ = 0;        // what its losses count in those of samples; 0: another rank's do
  bool counts_samples_ = false;  // one rank of each replica does
  torch::Device device_{torch::kCPU};  // of the parameters
  std::vector<bool> trains_;           // by segment: it reads a trainable parameter
  std::vector<bool> is_recomputed_;    // by action: a forward that is recomputed
  // by action: adds to gradients, and none of another batch does so behind it
  std::vector<bool> ends_gradients_;
  std::vector<bool> ends_shard_;   // by action: adds the last gradients of a micro-batch
  plan::ShardRange shards_;        // of this rank; none in a plan without logical shards
  std::optional<ShardSums> sums_;  // of these

  std::optional<Assigned> assigned_;       // a rerouted step
  std::map<std::uint64_t, Rank> senders_;  // in the link, of what is expected, by key

  int longest_delay_ = 0;
  std::optional<WeightVersions> versions_;  // where steps overlap

  // The step that is being executed.
  std::size_t current_ = 0;  // action
  double learning_rate_ = 0;
  std::deque<BatchUnderWay> batches_;  // the one loaded last first
  int finishing_ = 0;                  // steps since that load, while an agree finishes all of them
  BatchUnderWay* batch_ = nullptr;     // of the present action
  std::int64_t loads_ = 0;
  StepOutcome outcome_;
  /// Of this step, on a device other than the CPU, with the samples of each.
  std::vector<std::pair<torch::Tensor, std::int64_t>> losses_;
  std::int64_t samples_loaded_ = 0;  // of this rank, of all steps
  /// As it was at the last average or push of a range and slot, over these axes.
  std::map<std::tuple<int, int, int, std::vector<std::string>>, std::int64_t> samples_at_exchange_;
  double norm_ = 0;            // of the gradients as they are, then of what they stand for
  double gradient_scale_ = 1;  // what they are multiplied by
};

}  // namespace stormo::train
