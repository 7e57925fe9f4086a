#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/plan/project.h>
#include <stormo/server/ledger/shard_record.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/host_shard.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/worker_gradients.h>
#include <stormo/train/server_store/early_pull.h>
#include <stormo/train/server_store/early_push.h>
#include <stormo/train/server_store/local_copy.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/train/server_store/shard_calls.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// Parameters and optimizer state on server shards. Without a session they are in memory that the
/// ranks of one host share (see server::SharedShard), and all ranks are workers; with one, server
/// processes hold them, and this process is a worker of its own. A pull makes the module's
/// parameters look at the current version of each shard, without a copy; a parameter that lies on
/// several shards is copied together. A push updates the shards one after the other, each rank from
/// another one on, as the policy of the run decides. There are no collectives of workers in a step.
/// Shards behind connections send and receive while the worker computes, where the plan has
/// asynchronous pulls and pushes.
/// If a pull or push is not for every step, a worker has a LocalCopy instead, and pushes the sums
/// of its gradients.
///
/// Where the mesh has plan::kWorkerAxis a worker is the ranks of that axis. Only the first of them
/// has shards and the session's connection. A pull gives all of them copies with the same bits.
///
/// Where a worker is cut, each of its ranks has a store of its own part, and a session with the
/// servers of that part; see ModelParallelStore.
class ServedStore : public ParameterStore, public ServedWorker {
 public:
  /// What is wrong unless all ranks are on one host and share memory.
  static Status needs_one_host();
  /// A collective. `groups` and `module` are borrowed. `facts`: see make_store(). With a session
  /// the first worker then calls WorkerSession::open(). Throws Error for parameters that are not
  /// contiguous float32 or float64 in host memory, for several hosts, and for rules, policies or
  /// placements that do not fit.
  ServedStore(const AxisGroups& groups, const std::shared_ptr<torch::nn::Module>& module,
              const TrainerOptions& options, server::Facts facts = {});
  /// The same for the `part` of a worker that this rank has: its trainable parameters, which no
  /// other rank of the worker gives. Needs a session.
  ServedStore(const AxisGroups& groups, std::vector<NamedParameter> part,
              const TrainerOptions& options, server::Facts facts = {});
  ~ServedStore() override;

  void set_plan(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override { early_push_.begin_backward(last); }
  Status perform(const plan::Action& action, double weight) override;
  Status make_readable(plan::Range segments) override;
  Result<double> gradient_norm() override { return optimizer_.gradient_norm(); }
  Status push(const plan::Action& action, const StepRate& rate, double weight) override;
  Status update(const ParameterRange& range, const StepRate& rate) override;
  GatheredParameters gather() override;
  void keep_values() override { served_.keep_values(); }
  void zero_grad() override;
  FusedOptimizer& optimizer() override { return optimizer_; }
  TensorMap residuals() const override {
    return gradients_ ? gradients_->residuals() : TensorMap();
  }
  void keep_residuals(TensorMap kept) override {
    if (gradients_) gradients_->keep_residuals(std::move(kept));
  }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override;
  Status record_status() const override { return record_status_; }
  void begin_portion(int portion, std::uint64_t batch) override {
    portion_ = portion;
    batch_ = batch;
  }
  Status leave() override;
  Status join() override;
  Result<std::vector<ShardReport>> shard_reports() const override;

 protected:
  /// What servers hold, by name: tensors with the values that they begin with.
  using Values = std::function<std::vector<NamedParameter>(FusedOptimizer& of_worker)>;
  static std::vector<NamedParameter> parameters_of(FusedOptimizer& of_worker) {
    return of_worker.parameters();
  }
  /// `optimizer`: of the workers; `options`: of the servers.
  ServedStore(const AxisGroups& groups, std::vector<NamedParameter> parameters,
              const OptimizerOptions& optimizer, const TrainerOptions& options,
              server::Facts facts = {}, const Values& values = parameters_of);
  using Views = std::vector<server::Shard::View>;
  /// Current versions of all shards, after all workers have come here.
  Views look();
  /// One push to each shard, in order. All are begun before the first one is waited for: shards of
  /// other hosts then work at the same time. What was begun is called, also when one fails.
  Status push_all(const std::vector<server::PushedGradient>& pushes);

  comm::Communicator& world_;
  std::shared_ptr<server::WorkerSession> session_;  // null: ranks share memory
  plan::Part place_;                                // among the ranks of its worker
  int worker_, workers_;
  FusedOptimizer optimizer_;  // of norms of gradients; here it has no state
  ServedParameters served_;
  std::vector<std::unique_ptr<server::Shard>> shards_;  // of the first rank of a worker
  std::vector<std::uint64_t> sequence_;                 // of the next push or exchange, by shard
  ShardCalls calls_;

 private:
  bool leads() const { return place_.index == 0; }
  Status pull(bool asynchronous);
  Status finish_pull();
  Status give_to_ranks(const analysis::Collective& sent);
  void create_shards();
  void share_shards(server::Facts facts);
  void start_record(const TrainerOptions& options);
  void note(server::ShardEvent::Kind kind, std::size_t shard, std::uint64_t commit,
            TimePoint at = std::chrono::steady_clock::now());
  void record_push(std::size_t shard, const protocol::PushDecision& decision, TimePoint begun);

  EarlyPull pull_;
  EarlyPush early_push_;
  plan::Action last_push_;          // of a step
  std::vector<std::byte*> memory_;  // of shards, on the rank that allocated it
  std::optional<server::ShardRecorder> recorder_;
  Status record_status_;
  std::vector<std::uint64_t> versions_;  // that the last pull showed, by shard
  std::uint64_t steps_ = 0;              // of this worker, since the store was made
  bool begun_ = false;
  LocalCopy copy_;  // used where the plan updates it
  double lr_ = 0;   // of the last push
  int portion_ = -1;
  std::uint64_t batch_ = 0;
  // of a worker of several ranks
  comm::Communicator* ranks_ = nullptr;  // null: it has one
  std::optional<WorkerGradients> gradients_;
  std::vector<comm::Buffer> given_;  // what the first rank has pulled
  analysis::PlanRequests requests_;
  double pushed_samples_ = 0;  // of all its ranks, until the last push
};

}  // namespace stormo::train
