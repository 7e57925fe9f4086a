#include <stormo/train/loop/run_progress.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/train/sampling.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kLossSteps = 100;  // that the loss of a whole run is the mean of, at most
constexpr Duration kShowEvery = std::chrono::milliseconds(100);
constexpr std::int64_t kFewSteps = 20;  // after which nothing needs to be learned
/// A loss that is not below this share of chance has learned nothing.
constexpr double kChance = 0.98;

/// The loss of who always says how frequent the classes are; 0: there are no classes.
double loss_of_chance(const data::SampleLabels& labels) {
  if (labels.empty() || !labels.one_each()) return 0;
  std::vector<double> counts(static_cast<std::size_t>(labels.count()));
  for (const std::int32_t label : labels.all()) ++counts[static_cast<std::size_t>(label)];
  double entropy = 0;
  for (const double count : counts) {
    const double share = count / static_cast<double>(labels.size());
    if (share > 0) entropy -= share * std::log(share);
  }
  return entropy;
}

/// The passes that made the plan of all ranks of that of one device.
std::string shown_name(const plan::StepPlan& plan) {
  constexpr std::string_view kBegin = "one_device+";
  return plan.strategy.substr(plan.strategy.starts_with(kBegin) ? kBegin.size() : 0);
}

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

RunProgress::RunProgress(RunContext& run, RunModel& model)
    : run_(run),
      model_(model),
      log_(run.lanes),
      slow_ranks_(run, log_),
      recent_loss_(std::min(kLossSteps, (run.setup.train->size() + run.options.global_batch - 1) /
                                            run.options.global_batch)),
      steps_overlap_(longest_delay(run.setup.plan) > 0),
      started_(std::chrono::steady_clock::now()) {}

Status RunProgress::start() {
  const TrainerOptions& options = run_.options;
  observe::StartRecord record{.recipe = options.name,
                              .strategy = shown_name(run_.setup.plan),
                              .ranks = ranks_of_workers(options, run_.world.size()),
                              .hosts = run_.hosts(),
                              .steps = run_.steps,
                              .first_step = run_.state.step,
                              .global_batch = options.global_batch,
                              .seed = options.seed,
                              .checkpoint = options.checkpoint.directory};
  record.parameters = num_elements(run_.setup.plan.model);
  record.changed = run_.state.changed;
  record.data = run_.setup.data_records;
  run_.observer().on_start(record);
  if (run_.world.rank() == 0) {
    const auto sharding = sharding_record(options, run_.sampler, run_.state.samples);
    if (sharding) run_.observer().on_sharding(*sharding);
  }
  warn_at_start();
  if (run_.hosts() > 1 && !options.session) {
    STORMO_ASSIGN_OR_RETURN(hosts_, checkpoint::gather_texts(run_.world, run_.world.host()));
  }
  return {};
}

Status RunProgress::show(bool agreed, bool last) {
  log_is_due_ = log_is_due_ || is_due(run_.state.step, run_.options.log_every);
  // where steps overlap, the first stage learns losses when all ranks agree
  if (std::isnan(run_.step_loss) && !last) return {};
  const std::int64_t left = run_.steps - run_.state.step;
  if ((log_is_due_ && (agreed || !steps_overlap_)) || last) {
    log_is_due_ = false;
    observe::StepRecord record = log_.take(left);
    if (agreed) STORMO_RETURN_IF_ERROR(gather_shares(record));
    show_step(std::move(record), /*logged=*/true);
  } else if (std::chrono::steady_clock::now() - shown_ >= kShowEvery) {
    show_step(log_.look(left), /*logged=*/false);
  }
  return {};
}

Status RunProgress::gather_shares(observe::StepRecord& record) {
  if (run_.world.size() == 1) return {};
  record.rank_shares.resize(static_cast<std::size_t>(run_.world.size()));
  STORMO_RETURN_IF_ERROR(run_.world.all_gather(
      std::span<double>(record.share),
      std::span<double>(record.rank_shares.front().data(), record.rank_shares.size() * kNumLanes)));
  const auto busy = [](const std::array<double, kNumLanes>& share) {
    return share[static_cast<std::size_t>(Lane::kCompute)] +
           share[static_cast<std::size_t>(Lane::kData)];
  };
  const auto slowest = std::ranges::max_element(record.rank_shares, {}, busy);
  record.slowest = static_cast<int>(slowest - record.rank_shares.begin());
  if (!hosts_.empty()) record.slowest_host = hosts_[static_cast<std::size_t>(record.slowest)];
  return {};
}

void RunProgress::show_step(observe::StepRecord record, bool logged) {
  record.step = run_.state.step;
  record.steps = run_.steps;
  record.epoch =
      static_cast<double>(run_.state.samples) / static_cast<double>(run_.setup.train->size());
  record.loss = run_.step_loss;
  record.learning_rate = run_.learning_rate;
  record.samples = run_.state.samples;
  record.gradient_norm = run_.gradient_norm;
  record.bytes_sent = model_.groups().bytes_sent();
  record.checkpoint = run_.state.last_saved();
  logged ? run_.observer().on_step(record) : run_.observer().on_progress(record);
  shown_ = std::chrono::steady_clock::now();
}

void RunProgress::end_step(std::int64_t samples) {
  log_.add(samples);
  slow_ranks_.end_step();
}

void RunProgress::note_loss(double loss_sum, double samples, std::int64_t steps) {
  recent_loss_.add(loss_sum, samples, steps);
  if (!loss_watch_.has_grown(run_.step_loss)) return;
  run_.warn(
      "loss_grown",
      fmt::format("the loss has grown tenfold, from {:.4g} to {:.4g}: lower optimizer.lr, begin "
                  "slowly (learning_rate.warmup_steps) or limit steps (train.clip_norm)",
                  loss_watch_.first(), run_.step_loss));
}

void RunProgress::note_end(observe::EndRecord& end) const {
  end.steps = run_.state.step;
  end.samples = run_.state.samples;
  end.train_loss = recent_loss_.mean();
  end.train_loss_steps = recent_loss_.steps();
  end.wall_s = seconds_since(started_);
  const double trained_s = log_.total_seconds();
  const auto trained = static_cast<double>(run_.state.samples - run_.first_sample);
  end.samples_per_s = trained_s > 0 ? trained / trained_s : 0;
}

void RunProgress::warn_at_start() const {
  const auto is_test = [](const EvalSplit& split) { return split.name == "test"; };
  const std::vector<EvalSplit>& splits = run_.setup.splits;
  if (run_.options.eval_every > 0 && !splits.empty() && std::ranges::all_of(splits, is_test)) {
    run_.warn("no_validation",
              "train.eval_every: there is no validation part (data.validation), and the test part "
              "is evaluated at the end only");
  }
  if (!run_.state.link_warning.empty()) run_.warn("no_link", run_.state.link_warning);
  const Codec codec = run_.options.gradients.codec;
  if (codec != Codec::kNone &&
      std::ranges::count(run_.setup.plan.actions, codec, &plan::Action::codec) == 0) {
    run_.warn(
        "no_compression",
        "strategy.compression: nothing is compressed, because this plan sends no gradients between "
        "ranks that add them up: there is one rank, or ranks of one host read each other's, or "
        "parameters are averaged or on servers");
  }
}

void RunProgress::warn_at_chance() const {
  const bool classes = run_.setup.task.correct != nullptr;
  const std::int64_t trained = (run_.state.samples - run_.first_sample) / run_.options.global_batch;
  if (run_.world.rank() != 0 || !classes || trained < kFewSteps) return;
  const double chance = loss_of_chance(run_.setup.train->strata());
  const double loss = recent_loss_.mean();
  if (chance <= 0 || loss < kChance * chance) return;
  run_.warn(
      "at_chance",
      fmt::format("the model has learned nothing: its loss of {:.4g} is that of chance ({:.4g}, by "
                  "the frequencies of the classes); try another optimizer.lr, "
                  "learning_rate.warmup_steps, train.clip_norm, or more epochs",
                  loss, chance));
}

}  // namespace stormo::train
