#include <stormo/train/run/training_run.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include <stormo/checkpoint/exchange.h>
#include <stormo/plan/project.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/run/stop_signal.h>
#include <stormo/train/sampling.h>
#include <stormo/train/state/saved_samples.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kLossSteps = 100;  // that the loss of a whole run is the mean of, at most

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

/// Stages of a pipeline compute the same samples. A worker's mesh has its own ranks only.
data::Sampler sampler_of(const RunSetup& setup) {
  const TrainerOptions& o = setup.options;
  plan::Part mine = data_part(setup.plan.mesh, setup.world.rank());
  if (o.session) {
    mine.index += o.session->worker() * mine.parts;
    mine.parts *= o.session->workers();
  }
  return make_sampler(*setup.train, o, mine.index, mine.parts);
}

/// The passes that made the plan of all ranks of that of one device.
std::string shown_name(const plan::StepPlan& plan) {
  constexpr std::string_view kBegin = "one_device+";
  return plan.strategy.substr(plan.strategy.starts_with(kBegin) ? kBegin.size() : 0);
}

}  // namespace

TrainingRun::TrainingRun(RunSetup& setup)
    : setup_(setup),
      world_(setup.world),
      options_(setup.options),
      sampler_(sampler_of(setup)),
      steps_(options_.steps),
      state_(world_, *setup.task.module, options_, sampler_),
      lanes_(world_.rank()),
      log_(lanes_),
      recent_loss_(std::min(
          kLossSteps, (setup.train->size() + options_.global_batch - 1) / options_.global_batch)),
      started_(std::chrono::steady_clock::now()),
      leads_(!setup.left) {
  lanes_.pass_to(setup.sink);
  world_.set_sink(&lanes_);
}

TrainingRun::~TrainingRun() {
  if (groups_) groups_->set_sink(nullptr);
  world_.set_sink(nullptr);
}

observe::RunObserver& TrainingRun::observer() const {
  static observe::RunObserver silent;
  return setup_.observer != nullptr && world_.rank() == 0 ? *setup_.observer : silent;
}

int TrainingRun::hosts() const {
  return options_.session ? options_.session->hosts() : world_.cross_size();
}

Result<observe::EndRecord> TrainingRun::run() {
  const StopSignal stop;
  STORMO_RETURN_IF_ERROR(start());
  STORMO_RETURN_IF_ERROR(session_ ? train_in_session() : train());
  if (is_first()) STORMO_RETURN_IF_ERROR(finish());
  if (session_ && is_first()) STORMO_RETURN_IF_ERROR(session_->session.finish());
  if (signal_ == 0) return end_;
  return Status(
      Code::kInterrupted,
      "SIG" + std::string(::sigabbrev_np(signal_)) + " after step " + std::to_string(state_.step) +
          " of " + std::to_string(steps_) +
          (options_.checkpoint.directory.empty()
               ? "; no checkpoint directory is set, so nothing was saved"
               : "; saved in " + options_.checkpoint.directory + ", resume to go on from there"));
}

bool TrainingRun::all_know(const Status& status) const {
  return saves_gave_up_ || status.code() == Code::kInterrupted;
}

Status TrainingRun::start() {
  world_.set_section("start");
  setup_.task.module->train();
  const bool describes = world_.rank() == 0 && !options_.checkpoint.directory.empty();
  if (describes && !has_columns()) state_.training_data = describe_samples(*setup_.train);
  STORMO_RETURN_IF_ERROR(make_parameters());
  if (has_servers(setup_.plan) && !options_.session) {
    progress_ = std::make_unique<WorkerProgress>(world_);
  }
  if (is_diverged(setup_.plan) && !has_centre(setup_.plan)) {
    const auto average =
        std::ranges::find(setup_.plan.actions, plan::ActionKind::kAverage, &plan::Action::kind);
    averaging_ = std::make_unique<AveragingSchedule>(options_.averaging, average->every);
  }
  if (setup_.task.autocast == torch::kHalf) {
    scaler_ = std::make_unique<GradScaler>(world_, options_.loss_scale);
  }
  STORMO_RETURN_IF_ERROR(state_.attach(*store_, scaler_.get()));
  if (keeps_residuals(setup_.plan)) {
    STORMO_RETURN_IF_ERROR(state_.load_residuals().within("resume"));
  }
  first_sample_ = state_.samples;
  agreed_step_ = state_.step;
  steps_overlap_ = longest_delay(setup_.plan) > 0;
  if (options_.steps == 0) {
    steps_ = state_.step + sampler_.steps_until(state_.samples, options_.epochs);
  }
  if (options_.session) {
    STORMO_RETURN_IF_ERROR(begin_session());
  } else {
    prefetcher_ = std::make_unique<data::Prefetcher>(
        setup_.train, sampler_, state_.samples, prefetch_depth(options_), options_.data_threads);
  }
  comm::Communicator* context = nullptr;
  if (setup_.plan.mesh.find(plan::kContextAxis) >= 0) {
    STORMO_ASSIGN_OR_RETURN(context, groups_->over({plan::kContextAxis}));
  }
  STORMO_ASSIGN_OR_RETURN(grid_, groups_->grid());
  STORMO_ASSIGN_OR_RETURN(
      runner_, Runner::create(setup_.plan, world_.rank(),
                              {.load = [this] { return load_batch(); },
                               .task = setup_.task,
                               .store = *store_,
                               .lanes = lanes_,
                               .before_update = [this] { state_.before_update(); },
                               .agree = [this](const StepOutcome& o) { return agree(o); },
                               .context = context,
                               .grid = grid_ ? &*grid_ : nullptr,
                               .scaler = scaler_.get(),
                               .clip_norm = options_.clip_norm,
                               .done = setup_.done}));
  STORMO_RETURN_IF_ERROR(try_overlap());
  if (averaging_) STORMO_RETURN_IF_ERROR(follow_period());
  STORMO_RETURN_IF_ERROR(record_run());
  report_start();
  if (hosts() > 1 && !options_.session) {
    STORMO_ASSIGN_OR_RETURN(hosts_, checkpoint::gather_texts(world_, world_.host()));
  }
  return {};
}

// Where some rank lacks values, none has all of them later, unless each needs them.
Status TrainingRun::make_parameters() {
  const std::shared_ptr<torch::nn::Module>& module = setup_.task.module;
  const std::shared_ptr<model::Chain> in_parts = SegmentParts::chain_of(module, setup_.plan);
  const auto chain = std::dynamic_pointer_cast<model::Chain>(module);
  std::int64_t lacks = chain != nullptr && chain->lacks_values() ? 1 : 0;
  if (in_parts != nullptr) {
    STORMO_RETURN_IF_ERROR(
        world_.all_reduce(std::span<std::int64_t>(&lacks, 1), comm::ReduceOp::kMax));
    made_in_parts_ = lacks > 0;
  } else if (lacks > 0) {
    // others get them from rank 0
    for (std::size_t s = 0; s < chain->segments().size(); ++s) {
      if (!chain->lacks_values(s)) continue;
      const bool makes = world_.rank() == 0 && !options_.resume;
      makes ? chain->make_values(s) : chain->give_memory(s);
    }
  }
  STORMO_RETURN_IF_ERROR(state_.start(in_parts != nullptr));
  groups_ = std::make_unique<AxisGroups>(world_, setup_.plan);
  groups_->set_sink(&lanes_);
  MaterializeSegment bring;
  if (in_parts != nullptr) {
    bring = [&](std::size_t segment) { state_.materialize_segment(*in_parts, segment); };
  }
  store_ = make_store(setup_.plan, *groups_, module, options_, setup_.facts, bring);
  store_->set_sink(&lanes_);
  if (in_parts != nullptr) parts_.emplace(*in_parts, *store_);
  return {};
}

Result<data::Batch> TrainingRun::load_batch() {
  if (session_) return session_->loader.load(session_->task);
  const std::string step = "step " + std::to_string(state_.step + 1);
  world_.set_section(step + " load");
  STORMO_ASSIGN_OR_RETURN(data::StepBatch next, prefetcher_->next());
  world_.set_section(step + " forward and backward");
  loaded_samples_ = next.slice.global_size;
  return std::move(next.batch);
}

void TrainingRun::report_start() {
  observe::StartRecord record{.recipe = options_.name,
                              .strategy = shown_name(setup_.plan),
                              .ranks = ranks_of_workers(options_, world_.size()),
                              .hosts = hosts(),
                              .steps = steps_,
                              .first_step = state_.step,
                              .global_batch = options_.global_batch,
                              .seed = options_.seed,
                              .checkpoint = options_.checkpoint.directory};
  record.parameters = num_elements(setup_.plan.model);
  record.changed = state_.changed;
  observer().on_start(record);
  if (world_.rank() == 0) {
    const auto sharding = sharding_record(options_, sampler_, state_.samples);
    if (sharding) observer().on_sharding(*sharding);
  }
  warn_at_start();
}

Status TrainingRun::train() {
  started_training_ = true;
  log_.resume();
  while (state_.step < steps_ && signal_ == 0 && !enough_) {
    if (store_->optimizer().has_converged()) {
      enough_ = end_.converged = true;
      break;
    }
    const std::string section = "step " + std::to_string(state_.step + 1);
    world_.set_section(section);
    STORMO_RETURN_IF_ERROR(progress_ ? train_round() : train_one_step().within(section));
    if (state_.step == steps_) STORMO_RETURN_IF_ERROR(store_->optimizer().settle());
    if (!progress_ && !agreed_) {
      STORMO_RETURN_IF_ERROR(show_progress());
      continue;
    }
    STORMO_RETURN_IF_ERROR(between_steps().within("after " + section));
    if (progress_ && signal_ == 0) {
      state_.step = own_position_[0];
      state_.samples = own_position_[1];
    }
  }
  log_.pause();
  state_.before_update();
  return store_->optimizer().settle();
}

Status TrainingRun::train_one_step() {
  seed_step(options_.seed, state_.step, random_stream(setup_.plan, world_.rank()));
  lanes_.set_step(state_.step + 1);
  learning_rate_ = rate_of(state_.step);
  agreed_ = false;
  STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, runner_->step(learning_rate_, next_step()));
  STORMO_RETURN_IF_ERROR(end_step(outcome));
  if (!overlap_) return {};
  STORMO_ASSIGN_OR_RETURN(const bool changed, overlap_->step_done(world_));
  if (!changed) return {};
  STORMO_ASSIGN_OR_RETURN(const plan::StepPlan plan, overlapped(setup_.plan, overlap_->current()));
  return runner_->follow(plan);
}

double TrainingRun::rate_of(std::int64_t step) const {
  const double peak =
      scaled_learning_rate(options_.learning_rate, options_.optimizer.lr, options_.global_batch);
  return learning_rate(options_.learning_rate, peak, step, steps_);
}

// The next step after which all ranks do something together, or need equal parameters.
std::int64_t TrainingRun::next_common_step() const {
  std::int64_t next = steps_;
  for (const std::int64_t every :
       {options_.eval_every, options_.verify_every,
        options_.checkpoint.directory.empty() ? 0 : options_.checkpoint.every}) {
    if (every > 0) next = std::min(next, (state_.step / every + 1) * every);
  }
  return next;
}

StepAt TrainingRun::next_step() const {
  const std::int64_t number = state_.step + 1;
  const bool is_common = number == next_common_step();
  if (progress_) {
    const std::int64_t before = has_centre(setup_.plan) ? 0 : round_begin_;  // copies stay
    return {.number = number - before, .closes = is_common || ends_round_};
  }
  const bool every = averaging_ ? averaging_->is_warmup(number) : !steps_overlap_;
  return {.number = number, .closes = is_common || every};
}

Status TrainingRun::end_step(const StepOutcome& mine) {
  if (progress_) {
    note_own_step(mine);
    return {};
  }
  ++state_.step;
  state_.samples += loaded_samples_;
  log_.add(loaded_samples_);
  if (agreed_) return note_agreement();
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  const bool first = recent_loss_.steps() == 0;  // then nothing better is known
  if (first && round_.samples > 0) {
    step_loss_ = round_.loss_sum / static_cast<double>(round_.samples);
  }
  return {};
}

Status TrainingRun::note_agreement() {
  const std::int64_t steps = state_.step - std::exchange(agreed_step_, state_.step);
  if (!averaging_) return {};
  const int before = averaging_->period();
  averaging_->note(consensus_distance_, steps);
  return averaging_->period() == before ? Status() : follow_period();
}

Status TrainingRun::follow_period() {
  plan::StepPlan plan = setup_.plan;
  for (plan::Action& a : plan.actions) {
    const bool together =
        a.kind == plan::ActionKind::kAverage || a.kind == plan::ActionKind::kAgree;
    if (together) a.every = averaging_->period();
  }
  return runner_->follow(plan);
}

// Which form of the plan makes steps shortest is found out by the first steps, between which ranks
// compare their times.
Status TrainingRun::try_overlap() {
  const Overlap wanted = overlap_of(options_.gradients);
  if (wanted.kind != Overlap::Kind::kMeasured || !may_overlap(setup_.plan)) return {};
  const std::int64_t bytes = bytes_of(trainable_parameters(*setup_.task.module));
  overlap_ = std::make_unique<OverlapTrial>(world_, wanted, bytes);
  return {};
}

// Every rank learns the exact mean loss of the step, or of all since the ranks agreed before.
Status TrainingRun::agree(const StepOutcome& mine) {
  if (has_servers(setup_.plan)) return agree_in_worker(mine);
  agreed_ = true;
  round_.loss_sum += mine.loss_sum;
  round_.samples += mine.samples;
  StepOutcome all;
  STORMO_RETURN_IF_ERROR(exchange(std::exchange(round_, {}), all));
  step_loss_ = all.loss_sum / static_cast<double>(all.samples);
  note_loss(all.loss_sum, static_cast<double>(all.samples), state_.step + 1 - agreed_step_);
  end_.skipped_steps += mine.skipped ? 1 : 0;  // equal on all ranks
  return {};
}

// Every rank learns the sums over all, whether any of them was told to stop (all stop after the
// same step), and whether a save has failed in the background.
Status TrainingRun::exchange(const StepOutcome& mine, StepOutcome& all) {
  int stop = StopSignal::received();
  const bool usr1 = StopSignal::take_usr1();
  if (usr1 && stop == 0 && options_.on_usr1 == OnUsr1::kSaveAndExit) stop = SIGUSR1;
  const bool save_failed = world_.rank() == 0 && state_.save_failed();
  constexpr std::size_t kStops = StopSignal::kSignals.size();
  std::array<double, kAgreedNumbers + 1> sums{mine.loss_sum, static_cast<double>(mine.samples),
                                              usr1 && options_.on_usr1 == OnUsr1::kSave ? 1.0 : 0.0,
                                              save_failed ? 1.0 : 0.0};
  for (std::size_t i = 0; i < kStops; ++i)
    sums[4 + i] = stop == StopSignal::kSignals[i] ? 1.0 : 0.0;
  sums.back() = store_->consensus_squares();
  const std::size_t count = averaging_ ? sums.size() : kAgreedNumbers;
  STORMO_RETURN_IF_ERROR(
      world_.all_reduce(std::span<double>(sums).first(count), comm::ReduceOp::kSum));
  consensus_distance_ = std::sqrt(sums.back() / data_part(setup_.plan.mesh, 0).parts);
  save_now_ = sums[2] > 0;
  save_failed_ = sums[3] > 0;
  all.loss_sum = sums[0];
  all.samples = static_cast<std::int64_t>(sums[1]);
  const auto stops = std::span(sums).subspan<4, kStops>();
  const auto told = std::find_if(stops.begin(), stops.end(), [](double n) { return n > 0; });
  if (state_.step < steps_ && told != stops.end())
    signal_ = StopSignal::kSignals[static_cast<std::size_t>(told - stops.begin())];
  return {};
}

Status TrainingRun::between_steps() {
  const std::int64_t step = state_.step;
  world_.set_section("after step " + std::to_string(step));
  const bool last = step == steps_ || signal_ != 0;
  STORMO_RETURN_IF_ERROR(show_progress(last));
  if (last) return {};
  log_.pause();
  if (save_failed_) STORMO_RETURN_IF_ERROR(note_save(state_.finish_save()));
  if (due(step, options_.verify_every)) {
    const std::shared_ptr<void> shown = readable();
    STORMO_RETURN_IF_ERROR(check_weights().status());
  }
  // Who gives notice may soon kill: what it asks for is written before anything else.
  if (save_now_) STORMO_RETURN_IF_ERROR(save_when_due(/*in_background=*/false));
  // The evaluation next: what it says is part of the state that is saved.
  if (due(step, options_.eval_every)) {
    const std::shared_ptr<void> shown = readable();
    STORMO_RETURN_IF_ERROR(evaluate_all(/*at_end=*/false));
  }
  if (due(step, options_.checkpoint.every) && saving_step_ != step) {
    STORMO_RETURN_IF_ERROR(save_when_due(options_.checkpoint.asynchronous));
  }
  log_.resume();
  return {};
}

}  // namespace stormo::train
