#include <stormo/train/simulate/elastic_workers.h>

#include <utility>

#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/server_store/elastic_store.h>

namespace stormo::train {

Result<std::unique_ptr<ElasticWorkers>> ElasticWorkers::create(const Task& task,
                                                               const data::Dataset& data,
                                                               const TrainerOptions& options,
                                                               int workers, std::int64_t steps) {
  STORMO_ASSIGN_OR_RETURN(const double rate, moving_rate_of(options.elastic, workers));
  STORMO_ASSIGN_OR_RETURN(ServedParameters served,
                          ServedParameters::create(trainable_parameters(*task.module),
                                                   centre_options(options), workers));
  STORMO_ASSIGN_OR_RETURN(PrivateShards shards, PrivateShards::create(served, workers));
  std::unique_ptr<ElasticWorkers> out(
      new ElasticWorkers(options.strategy.period, rate, std::move(served), std::move(shards)));
  STORMO_ASSIGN_OR_RETURN(out->gradients_,
                          WorkerGradients::create(task, data, options, workers, steps,
                                                  [self = out.get()](const StepRate& at) {
                                                    self->computing_->gradients =
                                                        self->served_.gradients();
                                                    self->computing_->rate = at;
                                                  }));
  out->workers_.resize(static_cast<std::size_t>(workers));
  for (Worker& w : out->workers_) {
    w.own = out->gradients_->copy_values();
    w.optimizer =
        std::make_unique<FusedOptimizer>(options.optimizer, out->gradients_->parameters());
  }
  return out;
}

void ElasticWorkers::describe(protocol::VirtualCluster& cluster) const {
  cluster.servers = shards_.shards();
  cluster.exchanges = true;
  cluster.push_every = period_;
}

protocol::VirtualEvents ElasticWorkers::events() {
  return {
      .read = {},
      .computed = {},
      .pushed = [this](
                    int s, const protocol::Push& push,
                    const protocol::PushDecision& decision) { return exchange(s, push, decision); },
      .left = [this](int w, int s,
                     bool /*updates*/) { return shards_.at(w, s).leave(of(w).rate.lr).status(); },
      .step_ended = [this](int w) { return update(of(w)); }};
}

Result<StepOutcome> ElasticWorkers::compute(int worker, int part, std::int64_t step) {
  computing_ = &of(worker);
  gradients_->show(computing_->own);
  return gradients_->compute(worker, part, step);
}

Status ElasticWorkers::exchange(int shard, const protocol::Push& push,
                                const protocol::PushDecision& expected) {
  const std::vector<void*> own =
      served_.pieces_of(static_cast<std::size_t>(shard), of(push.worker).own);
  STORMO_ASSIGN_OR_RETURN(
      const server::Shard::Pushed done,
      shards_.at(push.worker, shard).exchange(own, moving_rate_, push.sequence));
  if (done.decision == expected) return {};
  return Status(Code::kCorrupt, "shard and simulation decide differently");
}

// With the gradient of the values before the exchange.
Status ElasticWorkers::update(Worker& worker) {
  gradients_->show(worker.own);
  const std::vector<NamedParameter>& parameters = gradients_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].tensor.mutable_grad() = worker.gradients[i];
  }
  STORMO_RETURN_IF_ERROR(worker.optimizer->step(worker.rate, 0, parameters.size()));
  worker.optimizer->zero_grad();
  return {};
}

void ElasticWorkers::finish() {
  const std::vector<server::Shard::View> centre = shards_.look();
  served_.show(centre);
  served_.keep_values();
  gradients_->finish();
}

}  // namespace stormo::train
