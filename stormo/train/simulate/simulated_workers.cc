#include <stormo/train/simulate/simulated_workers.h>

#include <cmath>
#include <functional>
#include <utility>

#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/sampling.h>
#include <stormo/train/server_store/elastic_store.h>
#include <stormo/train/server_store/local_copy.h>
#include <stormo/train/simulate/simulated_training.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/store/averaged_state.h>

namespace stormo::train {

struct SimulatedWorkers::Worker {
  std::vector<torch::Tensor> state;  // its own; undefined: the parameter of the servers
  StepRate rate;                     // of its last step
  double samples = 0;                // since its last push or average
  std::vector<std::unique_ptr<server::HostShard>> shards = {};
  std::vector<server::Shard::View> views = {};  // by shard, of its last read
  bool has_read = false;                        // since its last step
  std::vector<torch::Tensor> gradients = {};    // of its last push, or last step
  LocalCopy copy = {};
  // where it updates its own parameters
  std::unique_ptr<FusedOptimizer> optimizer = nullptr;
  std::unique_ptr<AveragedState> averaged = nullptr;

  Status update() {
    for (std::size_t i = 0; i < gradients.size(); ++i) state[i].mutable_grad() = gradients[i];
    STORMO_RETURN_IF_ERROR(optimizer->step(rate, 0, gradients.size()));
    optimizer->zero_grad();
    gradients.clear();
    return {};
  }
};

/// Keeps the gradients of a step in place of an update.
class SimulatedWorkers::Store final : public ParameterStore {
 public:
  explicit Store(SimulatedWorkers& workers)
      : workers_(workers),
        optimizer_(workers.options_.optimizer, trainable_parameters(*workers.task_.module)) {}
  Status perform(const plan::Action& /*action*/, double /*weight*/) override {
    return Status(Code::kBadPlan, "a worker only computes");
  }
  Result<double> gradient_norm() override { return optimizer_.gradient_norm(); }
  Status update(const ParameterRange& /*range*/, const StepRate& step_rate) override {
    rate = step_rate;
    if (workers_.served_) {
      gradients = workers_.served_->gradients();
    } else {
      for (const NamedParameter& p : optimizer_.parameters()) gradients.push_back(p.tensor.grad());
    }
    return {};
  }
  Optimizer& optimizer() override { return optimizer_; }

  StepRate rate;
  std::vector<torch::Tensor> gradients;  // by parameter

 private:
  SimulatedWorkers& workers_;
  FusedOptimizer optimizer_;  // of norms; it has no state
};

SimulatedWorkers::SimulatedWorkers(const Task& task, const data::Dataset& data,
                                   const TrainerOptions& options, int workers, std::int64_t steps)
    : task_(task),
      options_(options),
      steps_(steps),
      workers_(static_cast<std::size_t>(workers)),
      // any worker may do a part of a step, as with portions
      loader_({std::shared_ptr<void>(), &data}, options, 0, workers, {}, {.portions = workers}),
      store_(std::make_unique<Store>(*this)) {}

SimulatedWorkers::~SimulatedWorkers() = default;

SimulatedWorkers::Worker& SimulatedWorkers::of(int w) {
  return workers_[static_cast<std::size_t>(w)];
}

server::HostShard& SimulatedWorkers::shard(int worker, int number) {
  return *of(worker).shards[static_cast<std::size_t>(number)];
}

Result<std::unique_ptr<SimulatedWorkers>> SimulatedWorkers::create(const Task& task,
                                                                   const data::Dataset& data,
                                                                   const TrainerOptions& options,
                                                                   int workers,
                                                                   std::int64_t steps) {
  std::unique_ptr<SimulatedWorkers> out(new SimulatedWorkers(task, data, options, workers, steps));
  STORMO_RETURN_IF_ERROR(check_simulated(options));
  if (out->averages()) {
    STORMO_ASSIGN_OR_RETURN(
        out->sync_, protocol::make_policy({.kind = protocol::PolicyOptions::Kind::kSync}, workers));
  } else {
    if (out->exchanges()) {
      STORMO_ASSIGN_OR_RETURN(out->moving_rate_, moving_rate_of(options.elastic, workers));
    }
    STORMO_ASSIGN_OR_RETURN(
        out->served_,
        ServedParameters::create(trainable_parameters(*task.module),
                                 out->exchanges() ? centre_options(options) : options, workers));
    STORMO_RETURN_IF_ERROR(out->make_shards());
  }
  STORMO_RETURN_IF_ERROR(check_sharding(data, options, workers));
  STORMO_RETURN_IF_ERROR(out->start());
  return out;
}

Status SimulatedWorkers::make_shards() {
  for (std::size_t s = 0; s < served_->shards(); ++s) {
    for (int w = 0; w < std::ssize(workers_); ++w) {
      of(w).shards.push_back(served_->make_shard(s, w, {.policy = {}}));
      of(w).views.emplace_back();
    }
    server::HostShard& first = shard(0, static_cast<int>(s));
    STORMO_ASSIGN_OR_RETURN(auto memory, transport::MemoryFile::anonymous(first.bytes()));
    first.create(memory.data());
    STORMO_RETURN_IF_ERROR(served_->copy_values_to(first, s));
    for (Worker& w : workers_) w.shards[s]->attach(memory.data());
    memory_.push_back(std::move(memory));
  }
  return {};
}

Status SimulatedWorkers::start() {
  const std::vector<NamedParameter>& parameters = store_->optimizer().parameters();
  for (const NamedParameter& p : parameters) state_.push_back(p.tensor);
  for (const torch::Tensor& buffer : task_.module->buffers()) state_.push_back(buffer);
  for (Worker& w : workers_) {
    std::vector<NamedParameter> own = parameters;
    for (std::size_t i = 0; i < state_.size(); ++i) {
      w.state.push_back(has_own() || i >= own.size() ? state_[i].detach().clone()
                                                     : torch::Tensor());
      if (i < own.size()) own[i].tensor = w.state[i];
    }
    if (!updates()) continue;
    w.optimizer = std::make_unique<FusedOptimizer>(options_.optimizer, std::move(own));
    w.averaged = std::make_unique<AveragedState>(*w.optimizer);
  }
  task_.module->train();
  task_.loss = [this, loss = task_.loss](const torch::Tensor& output, const torch::Tensor& target) {
    const torch::Tensor value = loss(output, target);
    finite_ = finite_ && std::isfinite(value.item<double>());
    return value;
  };
  // what a worker computes by itself in a step; the update gives the gradients away
  STORMO_ASSIGN_OR_RETURN(
      const auto plan, parallel::plan_for({.kind = Strategy::Kind::kOneDevice}, shape_of(task_), {},
                                          step_options_of(options_, false, 1)));
  STORMO_ASSIGN_OR_RETURN(runner_,
                          Runner::create(plan, 0,
                                         {.load = [this] { return loader_.load(computed_); },
                                          .task = task_,
                                          .store = *store_,
                                          .lanes = lanes_,
                                          .clip_norm = options_.clip_norm}));
  return {};
}

protocol::VirtualEvents SimulatedWorkers::take_part(protocol::VirtualCluster& cluster) {
  const Strategy& strategy = options_.strategy;
  cluster.servers = averages() ? 1 : shards();
  cluster.exchanges = exchanges();
  cluster.read_every = averages() ? strategy.period : strategy.exchange_periods.fetch;
  cluster.push_every = updates() ? strategy.period : strategy.exchange_periods.push;
  if (averages()) {
    cluster.crash_ends_run = true;
    cluster.server_crashes.clear();  // there are none
    cluster.backups = false;
  }
  return {.read = [this](int w, int s) { return averages() ? Status() : read(w, s).status(); },
          .computed = {},
          .pushed = std::bind_front(&SimulatedWorkers::pushed, this),
          .left =
              [this](int w, int s, bool updates) {
                if (!averages()) return leave(w, s).status();
                if (updates) average();
                return Status();
              },
          // with the gradient of the values before the exchange
          .step_ended = [this](int w) { return exchanges() ? of(w).update() : Status(); }};
}

void SimulatedWorkers::show(Worker& worker) {
  if (!has_own()) served_->show(worker.views);
  if (std::exchange(worker.has_read, false) && has_own()) served_->copy(worker.views, worker.state);
  for (std::size_t i = 0; i < state_.size(); ++i) {
    if (worker.state[i].defined()) state_[i].set_data(worker.state[i]);
  }
}

Result<StepOutcome> SimulatedWorkers::compute(int worker, int part, std::int64_t step) {
  Worker& me = of(worker);
  if (!me.gradients.empty()) me.samples = 0;  // they are pushed
  me.gradients.clear();
  show(me);
  computed_ = {.part = part, .step = static_cast<std::uint64_t>(step)};
  seed_step(options_.seed, step, part);
  const double peak =
      scaled_learning_rate(options_.learning_rate, options_.optimizer.lr, options_.global_batch);
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome,
                          runner_->step(learning_rate(options_.learning_rate, peak, step, steps_)));
  me.samples += static_cast<double>(outcome.samples);
  me.rate = store_->rate;
  me.gradients = std::exchange(store_->gradients, {});
  if (averages()) STORMO_RETURN_IF_ERROR(me.update());
  if (served_ && served_->has_copies()) {
    me.copy.step(served_->parameters(), std::exchange(me.gradients, {}), me.rate);
  }
  return outcome;
}

Result<std::uint64_t> SimulatedWorkers::read(int worker, int number) {
  server::Shard::View& view = of(worker).views[static_cast<std::size_t>(number)];
  STORMO_ASSIGN_OR_RETURN(view, shard(worker, number).read(at_once()));
  of(worker).has_read = true;
  return view.commit;
}

Result<server::Shard::Pushed> SimulatedWorkers::push(int worker, int number, std::uint64_t sequence,
                                                     bool again) {
  Worker& me = of(worker);
  server::HostShard& to = shard(worker, number);
  const auto s = static_cast<std::size_t>(number);
  if (exchanges())
    return to.elastic_average(served_->pieces_of(s, me.state), moving_rate_, sequence);
  if (me.gradients.empty() && !again) me.gradients = me.copy.take();
  const std::vector<torch::Tensor> nothing(served_->parameters().size());
  const auto pieces = served_->gradient_pieces(s, again ? nothing : me.gradients);
  return to.push({.pieces = pieces,
                  .lr = me.rate.lr,
                  .gradient_scale = served_->has_copies() ? 1 : me.rate.gradient_scale,
                  .weight = me.samples,
                  .sequence = sequence},
                 at_once());
}

Result<std::uint64_t> SimulatedWorkers::leave(int worker, int number) {
  return shard(worker, number).leave(of(worker).rate.lr);
}

Status SimulatedWorkers::pushed(int number, const protocol::Push& push,
                                const protocol::PushDecision& expected) {
  const bool again = expected.action == protocol::PushAction::kRepeated;
  if (averages()) {
    if (!again) arrived_.insert(push.worker);
    if (expected.action == protocol::PushAction::kAddAndUpdate) average();
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(const auto done, this->push(push.worker, number, push.sequence, again));
  if (done.decision == expected) return {};
  return Status(Code::kCorrupt, "shard and simulation decide differently");
}

void SimulatedWorkers::average() {
  const std::set<int> arrived = std::exchange(arrived_, {});
  std::vector<AveragedState*> states;
  std::vector<double> weights;
  for (const int w : arrived) {
    states.push_back(of(w).averaged.get());
    weights.push_back(std::exchange(of(w).samples, 0));
  }
  if (average_together(states, weights)) last_ = *arrived.begin();
}

void SimulatedWorkers::finish() {
  if (averages()) {
    show(of(last_));
  } else {
    std::vector<server::Shard::View> last;
    for (const auto& shard : of(0).shards) last.push_back(shard->look().take_or_throw());
    served_->show(last);
    served_->keep_values();
  }
  for (std::size_t i = store_->optimizer().parameters().size(); i < state_.size(); ++i) {
    state_[i].set_data(of(0).state[i]);
  }
}

}  // namespace stormo::train
