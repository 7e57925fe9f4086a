#include <stormo/train/simulate/served_workers.h>

#include <utility>

#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {
namespace {

/// Nobody else is there to change a shard: what waits would wait for ever.
Deadline at_once() { return Deadline::after(Duration(0)); }

}  // namespace

Result<std::unique_ptr<ServedWorkers>> ServedWorkers::create(const Task& task,
                                                             const data::Dataset& data,
                                                             const TrainerOptions& options,
                                                             int workers, std::int64_t steps) {
  if (options.servers.updates == server::ShardUpdates::kInPlace) {
    return invalid_argument(
        "updates in place have no order and no version, so they are neither simulated nor "
        "replayed; use strategy.updates=versions");
  }
  if (protocol::has_coordinator(options.servers.policy.kind)) {
    return invalid_argument(
        "policy portions has a coordinator, which is neither simulated nor replayed; use another "
        "policy");
  }
  if (protocol::averages_values(options.servers.policy.kind)) {
    return invalid_argument(
        "policy average is simulated as parameter_averaging, and not replayed; write "
        "strategy.kind=parameter_averaging");
  }
  STORMO_ASSIGN_OR_RETURN(
      ServedParameters served,
      ServedParameters::create(trainable_parameters(*task.module), options, workers));
  STORMO_ASSIGN_OR_RETURN(PrivateShards shards, PrivateShards::create(served, workers));
  std::unique_ptr<ServedWorkers> out(
      new ServedWorkers(options, std::move(served), std::move(shards)));
  STORMO_ASSIGN_OR_RETURN(
      out->gradients_,
      WorkerGradients::create(task, data, options, workers, steps,
                              [self = out.get()](const StepRate& rate) { self->take(rate); }));
  out->workers_.resize(static_cast<std::size_t>(workers));
  for (Worker& w : out->workers_) {
    w.views.resize(out->served_.shards());
    if (out->served_.has_copies()) w.own = out->gradients_->copy_values();
  }
  return out;
}

void ServedWorkers::describe(protocol::VirtualCluster& cluster) const {
  cluster.servers = shards();
  cluster.read_every = options_.strategy.exchange.fetch;
  cluster.push_every = options_.strategy.exchange.push;
}

protocol::VirtualEvents ServedWorkers::events() {
  const auto pushed = [this](int s, const protocol::Push& push,
                             const protocol::PushDecision& expected) -> Status {
    const bool again = expected.action == protocol::PushAction::kRepeated;
    STORMO_ASSIGN_OR_RETURN(
        const auto done, again ? push_again(push, s) : this->push(push.worker, s, push.sequence));
    if (done.decision == expected) return {};
    return Status(Code::kCorrupt, "shard and simulation decide differently");
  };
  return {.read = [this](int w, int s) { return read(w, s).status(); },
          .computed = {},
          .pushed = pushed,
          .left = [this](int w, int s, bool /*updates*/) { return leave(w, s).status(); }};
}

Result<std::uint64_t> ServedWorkers::read(int worker, int number) {
  STORMO_ASSIGN_OR_RETURN(server::Shard::View view, shard(worker, number).read(at_once()));
  const std::uint64_t commit = view.commit;
  of(worker).views[static_cast<std::size_t>(number)] = std::move(view);
  of(worker).has_read = true;
  return commit;
}

void ServedWorkers::show(Worker& worker) {
  if (!served_.has_copies()) {
    served_.show(worker.views);
    return;
  }
  if (std::exchange(worker.has_read, false)) served_.copy(worker.views, worker.own);
  gradients_->show(worker.own);
}

Result<StepOutcome> ServedWorkers::compute(int worker, int part, std::int64_t step) {
  Worker& me = of(worker);
  if (!me.gradients.empty()) me.samples = 0;  // they are pushed
  me.gradients.clear();
  show(me);
  computing_ = &me;
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, gradients_->compute(worker, part, step));
  me.samples += static_cast<double>(outcome.samples);
  return outcome;
}

// Of the worker that computes.
void ServedWorkers::take(const StepRate& rate) {
  Worker& me = *computing_;
  me.rate = rate.lr;
  if (served_.has_copies()) {
    me.copy.step(served_.parameters(), served_.gradients(), rate);
  } else {
    me.gradients = served_.gradients();
    me.gradient_scale = rate.gradient_scale;
  }
}

Result<server::Shard::Pushed> ServedWorkers::push(int worker, int number, std::uint64_t sequence) {
  Worker& me = of(worker);
  if (me.gradients.empty()) me.gradients = me.copy.take();
  const GradientPieces pieces =
      served_.gradient_pieces(static_cast<std::size_t>(number), me.gradients);
  return shard(worker, number)
      .push({.pieces = pieces.dense,
             .rows = pieces.rows,
             .lr = me.rate,
             .gradient_scale = me.gradient_scale,
             .weight = me.samples,
             .sequence = sequence},
            at_once());
}

/// The worker may have another gradient already.
Result<server::Shard::Pushed> ServedWorkers::push_again(const protocol::Push& push, int number) {
  server::HostShard& to = shard(push.worker, number);
  const std::vector<const void*> nothing(to.pieces().size());
  return to.push({.pieces = nothing, .sequence = push.sequence}, at_once());
}

void ServedWorkers::finish() {
  const std::vector<server::Shard::View> last = shards_.look();
  served_.show(last);
  served_.keep_values();
  gradients_->finish();
}

}  // namespace stormo::train
