// What a run says of itself while it trains: steps, times of ranks, and what may be going wrong.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <stormo/train/run/training_run.h>

namespace stormo::train {
namespace {

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

}  // namespace

Status TrainingRun::show_progress(bool last) {
  log_is_due_ = log_is_due_ || (options_.log_every > 0 && state_.step % options_.log_every == 0);
  // where steps overlap, the first stage learns losses when all ranks agree
  if (std::isnan(step_loss_) && !last) return {};
  const std::int64_t left = steps_ - state_.step;
  if ((log_is_due_ && (agreed_ || !steps_overlap_)) || last) {
    log_is_due_ = false;
    observe::StepRecord record = log_.take(left);
    STORMO_RETURN_IF_ERROR(gather_shares(record));
    show_step(std::move(record), /*logged=*/true);
  } else if (std::chrono::steady_clock::now() - shown_ >= kShowEvery) {
    show_step(log_.look(left), /*logged=*/false);
  }
  return {};
}

// Only after a step in which all ranks agreed: then all of them are here.
Status TrainingRun::gather_shares(observe::StepRecord& record) {
  if (!agreed_ || progress_ || session_ || world_.size() == 1) return {};
  record.rank_shares.resize(static_cast<std::size_t>(world_.size()));
  STORMO_RETURN_IF_ERROR(world_.all_gather(
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

void TrainingRun::show_step(observe::StepRecord record, bool logged) {
  record.step = state_.step;
  record.steps = steps_;
  record.epoch = static_cast<double>(state_.samples) / static_cast<double>(setup_.train->size());
  record.loss = step_loss_;
  record.learning_rate = learning_rate_;
  logged ? observer().on_step(record) : observer().on_progress(record);
  shown_ = std::chrono::steady_clock::now();
}

void TrainingRun::note_loss(double loss_sum, double samples, std::int64_t steps) {
  recent_loss_.add(loss_sum, samples, steps);
  if (!loss_watch_.has_grown(step_loss_)) return;
  warn("loss_grown",
       fmt::format("the loss has grown tenfold, from {:.4g} to {:.4g}: lower optimizer.lr, begin "
                   "slowly (learning_rate.warmup_steps) or limit steps (train.clip_norm)",
                   loss_watch_.first(), step_loss_));
}

void TrainingRun::warn(std::string kind, std::string message) {
  observer().on_warning(
      {.kind = std::move(kind), .step = state_.step, .message = std::move(message)});
}

void TrainingRun::warn_at_start() {
  const auto is_test = [](const EvalSplit& split) { return split.name == "test"; };
  if (options_.eval_every > 0 && !setup_.splits.empty() &&
      std::ranges::all_of(setup_.splits, is_test)) {
    warn("no_validation",
         "train.eval_every: there is no validation part (data.validation), and the test part is "
         "evaluated at the end only");
  }
  if (!state_.link_warning.empty()) warn("no_link", state_.link_warning);
  const plan::Codec codec = options_.gradients.codec;
  if (codec != plan::Codec::kNone &&
      std::ranges::count(setup_.plan.actions, codec, &plan::Action::codec) == 0) {
    warn(
        "no_compression",
        "strategy.compression: nothing is compressed, because this plan sends no gradients between "
        "ranks that add them up: there is one rank, or ranks of one host read each other's, or "
        "parameters are averaged or on servers");
  }
}

void TrainingRun::warn_at_chance() {
  const bool classes = setup_.task.correct != nullptr;
  const std::int64_t trained = (state_.samples - first_sample_) / options_.global_batch;
  if (world_.rank() != 0 || !classes || trained < kFewSteps) return;
  const double chance = loss_of_chance(setup_.train->strata());
  const double loss = recent_loss_.mean();
  if (chance <= 0 || loss < kChance * chance) return;
  warn(
      "at_chance",
      fmt::format("the model has learned nothing: its loss of {:.4g} is that of chance ({:.4g}, by "
                  "the frequencies of the classes); try another optimizer.lr, "
                  "learning_rate.warmup_steps, train.clip_norm, or more epochs",
                  loss, chance));
}

}  // namespace stormo::train
