#include <stormo/train/run/trainer.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/requirements.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/plan/project.h>
#include <stormo/protocol/rolling_check.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/tensor/host_staging.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/failure.h>
#include <stormo/train/loop/last_batch.h>
#include <stormo/train/loop/run_facts.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/planner/choose.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/run/elastic_run.h>
#include <stormo/train/run/training_run.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/elastic_check.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/step/variance_freeze.h>
#include <stormo/train/store/host_shared_parameters.h>

namespace stormo::train {
namespace {

bool is_validation(const EvalSplit& split) { return split.name == "validation"; }

void check_best(const RunSetup& setup, Requirements& require) {
  const TrainerOptions& o = setup.options;
  const bool best = o.checkpoint.best != "none";
  require(!best || std::ranges::any_of(setup.splits, &is_validation),
          "the best checkpoint is judged by a split \"validation\", which is not there");
  require(o.checkpoint.best != "accuracy" || setup.task.correct,
          "the best checkpoint is judged by its accuracy, but the task has no Task::correct");
  require(o.patience == 0 || best, "patience needs to know what is better: set checkpoint.best");
}

/// That begin the run; the world of a process that joins later has none of them.
int first_ranks(const RunSetup& setup) {
  return setup.elastic != nullptr ? setup.elastic->first_ranks() : setup.world.size();
}

/// Members of a population judge models by a split that is large enough for all of them.
void check_population(const RunSetup& setup, Requirements& require) {
  const TrainerOptions& o = setup.options;
  const int members = first_ranks(setup);
  if (!is_population(o.strategy.kind) || members == 1) return;
  const auto split = std::ranges::find_if(setup.splits, &is_validation);
  const bool has = split != setup.splits.end() && split->dataset != nullptr;
  require(has,
          "members of a population judge models by a split \"validation\" (data.validation), which "
          "is not there");
  require(!has || split->dataset->size() >= members,
          "each of the " + std::to_string(members) +
              " members judges by its share of the validation part, which has fewer samples: make "
              "it larger (data.validation), or start fewer ranks");
  require(!has_batch_norm(*setup.task.module),
          "members of a population exchange parameters, and the means and variances of BatchNorm "
          "are none: use another norm, or strategy.kind=ddp");
  if (o.strategy.kind != Strategy::Kind::kCodistillation) return;
  require(!setup.task.target_unit,
          "codistillation compares predicted classes, and the targets are numbers: use "
          "strategy.kind=tournament, or ddp");
  require(!o.recompute, "codistillation computes a batch in one piece: leave out train.recompute");
}

/// Whether the optimizer takes the parameters of the model.
void check_parameters(const RunSetup& setup, Requirements& require) {
  const OptimizerOptions& o = setup.options.optimizer;
  const std::vector<NamedParameter> parameters = trainable_parameters(*setup.task.module);
  for (const NamedParameter& p : parameters) {
    require(!p.sparse || optim::leaves_rest_alone(o),
            "'" + p.name +
                "' has sparse gradients, and the optimizer would change rows that have none: use "
                "sgd without momentum or adagrad, without weight decay, or build the module with "
                "sparse(false)");
  }
  require(o.kind != OptimizerOptions::Kind::kMuon ||
              std::ranges::any_of(parameters, &NamedParameter::hidden),
          "muon is for matrices between the first and the last segment of a model::Chain, and this "
          "model has none that is trained: use another optimizer, such as adamw");
}

// Everything that is wrong, one line each.
Status validate(const RunSetup& setup) {
  const TrainerOptions& o = setup.options;
  Requirements require("\n");
  require(o.steps > 0 || o.epochs > 0, "set steps or epochs to a positive number");
  require(setup.train != nullptr && setup.train->size() > 0, "the training data is empty");
  require(o.servers.processes == 0 || o.session != nullptr,
          "servers.processes are no ranks of the Trainer's world: give it a session with them");
  const int parts = parts_of(o, first_ranks(setup));
  require(o.global_batch >= parts, "the global batch of " + std::to_string(o.global_batch) +
                                       " is smaller than its " + std::to_string(parts) +
                                       " parts (ranks, or portions); raise it or use fewer");
  const Status portions = check_portions(o, first_ranks(setup));
  require(portions.ok(), portions.message());
  require(o.log_every >= 0 && o.eval_every >= 0 && o.verify_every >= 0 && o.checkpoint.every >= 0,
          "intervals in steps must not be negative");
  require(setup.verify_state >= protocol::RollingCheck::kAutomatic,
          "verify_state is a number of steps, 0, or -1");
  require(!o.resume || !o.checkpoint.directory.empty(),
          "resume needs the directory of the checkpoints");
  require(!o.resume || !o.overwrite,
          "a run resumes from checkpoints, or overwrites them: not both");
  require(o.record.empty() || o.strategy.kind == Strategy::Kind::kParameterServer,
          "only runs with strategy 'parameter_server' are recorded: others depend on no order");
  require(o.record.empty() || !o.resume,
          "a run that resumes is not recorded: a replay begins with the first step");
  if (setup.train != nullptr && setup.train->size() > 0) {
    const Status sharding = check_sharding(*setup.train, o, parts);
    require(sharding.ok(), sharding.message());
  }
  const Status keys = check_keys(o);
  require(keys.ok(), keys.message());
  const Result<Strategy> strategy = strategy_of(o);
  require(strategy.ok() || !keys.ok(), strategy.status().message());
  check_parameters(setup, require);
  const Status momentum = check_momentum(setup.plan, o);
  require(momentum.ok(), momentum.message());
  require(setup.freeze_after >= 0, "the step to freeze after must not be negative");
  if (setup.freeze_after > 0) {
    const Status freeze = check_freeze(o, setup.task.autocast == torch::kHalf);
    require(freeze.ok(), freeze.message());
  }
  const Status shards = check_logical_shards(o, first_ranks(setup));
  require(shards.ok(), shards.message());
  require(o.logical_shards == 0 || !has_batch_norm(*setup.task.module),
          "the model has BatchNorm, whose mean and variance depend on which samples a rank has: "
          "logical shards (train.logical_shards) are for models without it; leave it out, or use "
          "another norm");
  require(o.micro_batches >= 1, "micro_batches must be at least 1");
  require(o.optimizer.lr > 0 && o.clip_norm >= 0,
          "the learning rate must be positive, clip_norm not negative");
  check_best(setup, require);
  check_population(setup, require);
  for (const EvalSplit& split : setup.splits) {
    require(split.dataset != nullptr && split.dataset->size() > 0 && split.batch > 0,
            "split '" + split.name + "' has no samples, or no batch size");
  }
  return require.status();
}

/// What only the first worker does, others leave out, as long as it is there.
void leave_to_the_first(RunSetup& setup) {
  TrainerOptions& o = setup.options;
  LeftToTheFirst& left = setup.left.emplace(LeftToTheFirst{.checkpoint = o.checkpoint,
                                                           .eval_every = o.eval_every,
                                                           .patience = o.patience,
                                                           .splits = {}});
  if (o.session->may_change_chief()) left.splits = setup.splits;
  if (o.overwrite) left.earlier = run_in_folder(o.checkpoint.directory);
  o.checkpoint = {};
  o.resume = o.overwrite = false;
  o.eval_every = o.patience = 0;
  setup.splits.clear();
  setup.observer = nullptr;
}

/// The first pass of a process takes longer than later ones. Who joins others does it before, so
/// that nobody waits for it.
void warm_up(const RunSetup& setup) {
  constexpr std::int64_t kLeast = 2;  // of which a batch norm knows a variance
  const std::int64_t part =
      setup.options.global_batch / setup.elastic->first_ranks() / setup.options.micro_batches;
  std::vector<std::int64_t> some(
      static_cast<std::size_t>(std::min(setup.train->size(), std::max(kLeast, part))));
  std::iota(some.begin(), some.end(), 0);
  const data::Batch batch = setup.train->get(some, /*epoch=*/0);
  setup.task.module->train();
  std::optional<Autocast> autocast;
  if (setup.task.autocast) autocast.emplace(torch::kCPU, *setup.task.autocast);
  torch::Tensor output = setup.task.forward(batch.input);
  if (autocast) output = output.to(torch::kFloat32);  // for the loss
  autocast.reset();
  setup.task.loss(output, batch.target).backward();
  setup.task.module->zero_grad();
}

/// Of a process that joins others, with memory for the values that they give it.
std::vector<NamedParameter> parameters_to_get(const RunSetup& setup) {
  const plan::StepPlan& plan = setup.plan;
  if (num_stages(plan.mesh) == 1) return trainable_parameters(*setup.task.module);
  std::vector<NamedParameter> own = parameters_of_stage(
      plan.model, *setup.task.module, stage_of(plan.mesh, setup.elastic->first_rank()));
  for (const NamedParameter& p : own) {
    if (!tensor::has_memory(p.tensor)) tensor::set_memory(p.tensor, true);
  }
  return own;
}

std::unique_ptr<comm::Communicator> staging_of(comm::Communicator& world, const Task& task) {
  const torch::Device device = device_of(*task.module);
  return device.is_cpu() ? nullptr : std::make_unique<tensor::HostStaging>(world, device);
}

template <class Function>
Result<observe::EndRecord> result_of(const Function& function) {
  try {
    return function();
  } catch (...) {
    return failure_of_current_exception();
  }
}

}  // namespace

struct Trainer::State {
  std::unique_ptr<comm::Communicator> staging;  // over the world; null: parameters are on the CPU
  RunSetup setup;
  Status composed;
  int signal = 0;
  std::string last_saved;
  bool started = false;
  bool all_know = false;  // how this rank ends

  Status choose();
  Status compose();
  Status agree_on_terms();
  Result<observe::EndRecord> run();
  Result<observe::EndRecord> run_epochs();
  Status enter_epoch();
  Result<observe::EndRecord> train();
};

/// With strategy kAuto, finds the fastest one. A collective then.
Status Trainer::State::choose() {
  if (setup.options.strategy.kind != Strategy::Kind::kAuto) return {};
  Status problem = validate(setup);
  if (problem.ok()) problem = composed;
  if (problem.ok() && !device_of(*setup.task.module).is_cpu()) {
    problem = invalid_argument("strategy 'auto' measures on the CPU; name a strategy, such as ddp");
  }
  STORMO_RETURN_IF_ERROR(comm::check_agreement(
      setup.world, problem.ok() ? run_facts(setup) : std::vector<comm::Fact>(), problem));
  Result<TrainerOptions> chosen =
      choose_strategy(setup.world, setup.task, *setup.train, setup.options);
  if (chosen.ok()) setup.options = std::move(*chosen);
  composed = chosen.ok() ? compose() : chosen.status();
  return {};
}

Status Trainer::State::compose() {
  const TrainerOptions& o = setup.options;
  if (o.strategy.kind == Strategy::Kind::kAuto) return strategy_of(o).status();
  std::vector<int> hosts = setup.world.ranks_per_host();
  if (setup.elastic != nullptr && o.strategy.pipeline > 1) {  // the plan stays that of all
    const std::optional<std::vector<int>> first = setup.elastic->first_ranks_per_host();
    if (!first) {
      return invalid_argument(
          "elastic training of pipelines takes as many ranks on each host; name such hosts (-H)");
    }
    hosts = *first;
  }
  STORMO_RETURN_IF_ERROR(check_servers(o, trainable_parameters(*setup.task.module), hosts));
  STORMO_ASSIGN_OR_RETURN(comm::StepInput step,
                          planned_step(o, setup.task, hosts, /*samples=*/0,
                                       HostSharedParameters::possible(setup.world)));
  STORMO_RETURN_IF_ERROR(check_served_parts(o, step.plan, workers_of(o, setup.world.size())));
  setup.plan = std::move(step.plan);
  return {};
}

Status Trainer::State::agree_on_terms() {
  Status problem = validate(setup);
  if (problem.ok()) problem = composed;
  if (problem.ok()) {
    problem = check_single_samples(setup.task, *setup.train, setup.options,
                                   parts_of(setup.options, first_ranks(setup)));
  }
  std::vector<comm::Fact> facts;
  const bool has_others = setup.world.size() > 1 || setup.options.session;
  if (problem.ok() && has_others) facts = run_facts(setup);
  STORMO_RETURN_IF_ERROR(comm::check_agreement(setup.world, facts, problem));
  if (setup.options.session) {
    for (comm::Fact& f : facts) setup.facts.emplace_back(std::move(f.field), std::move(f.value));
    if (!setup.options.session->opens()) leave_to_the_first(setup);
  }
  return {};
}

Result<observe::EndRecord> Trainer::State::run() {
  STORMO_RETURN_IF_ERROR(choose());
  STORMO_RETURN_IF_ERROR(agree_on_terms());
  return setup.elastic != nullptr ? run_epochs() : train();
}

/// A run of its own in each epoch, which goes on from what the one before has kept.
Result<observe::EndRecord> Trainer::State::run_epochs() {
  const StopSignal stop(StopSignal::Scope::kMember);  // also between two of them
  ElasticSession& session = *setup.elastic;
  if (trains_locally(setup.options.strategy.kind)) session.kept.replica.emplace();
  if (setup.options.overwrite) session.earlier = run_in_folder(setup.options.checkpoint.directory);
  if (session.joins_later()) {
    std::unique_ptr<Optimizer> optimizer =
        make_optimizer(setup.options.optimizer, parameters_to_get(setup));
    const TrainingState state(*optimizer);
    if (num_stages(setup.plan.mesh) == 1) warm_up(setup);
    session.kept.optimizer = std::move(optimizer);
    STORMO_RETURN_IF_ERROR(session.open(elastic_terms(setup, state, 0, 0)));
    STORMO_RETURN_IF_ERROR(enter_epoch());
  }
  for (;;) {
    Result<observe::EndRecord> end = train();
    if (!session.has_left()) return end;
    const Status entered = enter_epoch();
    // others did the last steps of a replay
    if (session.replays() && entered.code() == Code::kCancelled) return observe::EndRecord{};
    STORMO_RETURN_IF_ERROR(entered);
  }
}

Status Trainer::State::enter_epoch() {
  STORMO_RETURN_IF_ERROR(setup.elastic->enter());
  STORMO_RETURN_IF_ERROR(compose());
  if (setup.world.rank() != 0 || setup.observer != nullptr || !setup.lead) return {};
  STORMO_ASSIGN_OR_RETURN(setup.observer, setup.lead());
  return {};
}

Result<observe::EndRecord> Trainer::State::train() {
  const std::unique_ptr<TrainingRun> run = TrainingRun::create(setup);
  Result<observe::EndRecord> end = result_of([&run] { return run->run(); });
  if (setup.elastic != nullptr && !end.ok()) setup.elastic->note_failed_start(run->started());
  // before the run goes: it may wait for others, and they for this rank
  all_know = run->all_know(end.status());
  const bool goes_on = setup.elastic != nullptr && setup.elastic->has_left();
  if (!end.ok() && !all_know && !goes_on) setup.world.fail(end.status());
  signal = run->interrupt_signal();
  last_saved = run->last_saved();
  started = run->started();
  return end;
}

Trainer::Trainer(comm::Communicator& world, Task task, std::shared_ptr<const data::Dataset> train,
                 std::vector<EvalSplit> splits, TrainerOptions options) {
  std::unique_ptr<comm::Communicator> staging = staging_of(world, task);
  comm::Communicator& ranks = staging ? *staging : world;
  state_.reset(new State{.staging = std::move(staging),
                         .setup = {.world = ranks,
                                   .task = std::move(task),
                                   .train = std::move(train),
                                   .splits = std::move(splits),
                                   .options = std::move(options),
                                   .plan = {}},
                         .composed = {}});
  state_->composed = state_->compose();
}

Trainer::~Trainer() = default;

void Trainer::set_observer(observe::RunObserver* observer) { state_->setup.observer = observer; }
void Trainer::set_data_records(std::vector<observe::DataRecord> records) {
  state_->setup.data_records = std::move(records);
}
void Trainer::accept_changes(std::vector<std::string> keys) {
  state_->setup.accepted_changes = std::move(keys);
}
void Trainer::verify_state(std::int64_t steps) { state_->setup.verify_state = steps; }
void Trainer::freeze_after(std::int64_t steps) { state_->setup.freeze_after = steps; }
void Trainer::on_lead(std::function<Result<observe::RunObserver*>()> make) {
  state_->setup.lead = std::move(make);
}
void Trainer::set_elastic(ElasticSession* session) {
  state_->setup.elastic = session;
  const bool is_cut = state_->setup.options.strategy.pipeline > 1;
  if (session != nullptr && is_cut) state_->composed = state_->compose();
}
void Trainer::set_sink(Sink* sink) { state_->setup.sink = sink; }
void Trainer::on_action(DoneAction done) { state_->setup.done = std::move(done); }
const plan::StepPlan& Trainer::plan() const { return state_->setup.plan; }
const Status& Trainer::composed() const { return state_->composed; }
int Trainer::interrupt_signal() const { return state_->signal; }
const std::string& Trainer::last_saved() const { return state_->last_saved; }
bool Trainer::started() const { return state_->started; }

Result<observe::EndRecord> Trainer::run() {
  Result<observe::EndRecord> end = result_of([this] { return state_->run(); });
  const ElasticSession* const elastic = state_->setup.elastic;
  const bool told = state_->all_know || end.status().code() == Code::kRefused ||
                    (elastic != nullptr && elastic->has_left_job());
  if (!end.ok() && !told) state_->setup.world.fail(end.status());
  return end;
}

}  // namespace stormo::train
