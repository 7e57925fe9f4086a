#include <stormo/train/runner.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <stormo/train/non_finite.h>
#include <stormo/train/precision.h>
#include <stormo/train/segment_range.h>

namespace stormo::train {
namespace {

using plan::ActionKind;

Status bad_plan(const plan::Action& action, const std::string& why) {
  return Status(Code::kBadPlan, std::string(to_string(action.kind)) + " of segments " +
                                    std::to_string(action.first) + ".." +
                                    std::to_string(action.last) + ": " + why);
}

// The global norm exists only once every gradient is final.
Status check_norm(const plan::StepPlan& plan) {
  bool updated = false;
  for (const plan::Action& a : plan.actions) {
    if (a.kind == ActionKind::kUpdate) updated = true;
    if (updated && (a.kind == ActionKind::kBackward || a.kind == ActionKind::kAllReduce ||
                    a.kind == ActionKind::kReduceScatter)) {
      return bad_plan(
          a, "clipping and the scale of the loss need all gradients before the first update");
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const plan::StepPlan& plan,
                                               const comm::Communicator& world, RunnerParts parts) {
  STORMO_RETURN_IF_ERROR(plan::validate(plan));
  if (plan.mesh.size() != world.size()) {
    return Status(Code::kBadPlan, "the plan is for " + std::to_string(plan.mesh.size()) +
                                      " rank(s), the job has " + std::to_string(world.size()) +
                                      "; compose it for these ranks (parallel::plan_for)");
  }
  if (parts.clip_norm > 0 || parts.scaler != nullptr) STORMO_RETURN_IF_ERROR(check_norm(plan));
  std::unique_ptr<Runner> runner(new Runner(world.rank(), std::move(parts)));
  const std::vector<NamedParameter>& all = runner->parts_.store.optimizer().parameters();
  for (const plan::Action& action : plan.actions) {
    const bool computes =
        action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward;
    if (runner->parts_.store.by_segment()) {
      // a step's first action of a kind is about all segments, the others have been done then
      if (runner->has(action.kind)) continue;
    } else if (computes && !covers_all(plan.model, action)) {
      return bad_plan(action, "the task computes all segments");
    }
    Operation operation{.action = action};
    if (!runner->parts_.store.by_segment() && action.kind != ActionKind::kLoad &&
        action.kind != ActionKind::kLoss) {
      STORMO_ASSIGN_OR_RETURN(operation.parameters, parameters_of(plan.model, action, all));
    }
    runner->operations_.push_back(std::move(operation));
  }
  return runner;
}

bool Runner::has(ActionKind kind) const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [kind](const Operation& o) { return o.action.kind == kind; });
}

Result<StepOutcome> Runner::step(double learning_rate) {
  outcome_ = {};
  gradient_scale_.reset();
  for (const Operation& operation : operations_) {
    STORMO_RETURN_IF_ERROR(
        execute(operation, learning_rate).within(to_string(operation.action.kind)));
  }
  batches_.clear();
  output_.reset();
  loss_.reset();
  parts_.store.zero_grad();
  return outcome_;
}

Status Runner::execute(const Operation& operation, double learning_rate) {
  const bool has_samples = outcome_.samples > 0 || needs_equal_passes();
  const auto weight = static_cast<double>(outcome_.samples);
  switch (operation.action.kind) {
    case ActionKind::kLoad: return load();
    case ActionKind::kForward:
      if (!has_samples) {
        parts_.store.skip_passes();
        return {};
      }
      STORMO_RETURN_IF_ERROR(leading_micro_batches());
      forward(/*last=*/true);
      return {};
    case ActionKind::kLoss: return has_samples ? loss() : Status();
    case ActionKind::kBackward:
      if (has_samples) backward();
      return {};
    // the communicator records their Events
    case ActionKind::kReduceScatter:
      return parts_.store.reduce_scatter(operation.parameters, weight);
    case ActionKind::kAllReduce: return parts_.store.all_reduce(operation.parameters, weight);
    case ActionKind::kUpdate: return update(operation.parameters, learning_rate);
    case ActionKind::kAllGather: return parts_.store.gather();
  }
  return {};
}

Status Runner::load() {
  const Interval interval(parts_.lanes, Lane::kData, "load");
  STORMO_ASSIGN_OR_RETURN(const data::Batch batch, parts_.load());
  outcome_.samples = batch.size();
  at_ = 0;
  if (parts_.micro_batches == 1) {
    batches_ = {batch};
    return {};
  }
  batches_.clear();
  const auto inputs = batch.input.tensor_split(parts_.micro_batches);
  const auto targets = batch.target.tensor_split(parts_.micro_batches);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool empty = targets[i].size(0) == 0;
    if (!empty || needs_equal_passes()) batches_.push_back({inputs[i], targets[i]});
  }
  return {};
}

// Every pass of a store that works by segment gathers and reduces together with the others'.
bool Runner::needs_equal_passes() const {
  return parts_.micro_batches > 1 && parts_.store.by_segment();
}

Status Runner::leading_micro_batches() {
  for (; at_ + 1 < batches_.size(); ++at_) {
    forward(/*last=*/false);
    STORMO_RETURN_IF_ERROR(loss());
    backward();
  }
  return {};
}

void Runner::forward(bool last) {
  const Interval interval(parts_.lanes, Lane::kCompute, "forward");
  parts_.store.begin_pass(static_cast<double>(outcome_.samples), last);
  std::optional<Autocast> autocast;
  if (parts_.task.autocast) autocast.emplace(at::kCPU, *parts_.task.autocast);
  output_ = parts_.store.forward(parts_.task, batches_[at_].input);
  if (autocast) output_ = output_.to(torch::kFloat32);  // for the loss
}

Status Runner::loss() {
  const Interval interval(parts_.lanes, Lane::kCompute, "loss");
  const data::Batch& batch = batches_[at_];
  if (batch.size() == 0) {
    loss_ = output_.sum();  // a sum of nothing: zero, with gradients of zero
    return {};
  }
  loss_ = parts_.task.loss(output_, batch.target);
  const double value = loss_.item<double>();
  outcome_.loss_sum += value * static_cast<double>(batch.size());
  if (std::isfinite(value)) return {};
  return invalid_argument("rank " + std::to_string(rank_) + ": the loss is " +
                          std::to_string(value) + "; not finite first: " + where_not_finite(batch) +
                          "; lower the learning rate, clip gradients or check the data");
}

std::string Runner::where_not_finite(const data::Batch& batch) const {
  return parts_.store.always_readable() ? first_non_finite(parts_.task, batch)
                                        : first_non_finite(parts_.store.pieces(), batch, output_);
}

// The gradients of all passes add up to that of the mean over this rank's samples.
void Runner::backward() {
  const Interval interval(parts_.lanes, Lane::kCompute, "backward");
  if (batches_.size() > 1 && outcome_.samples > 0) {
    loss_ =
        loss_ * (static_cast<double>(batches_[at_].size()) / static_cast<double>(outcome_.samples));
  }
  if (parts_.scaler != nullptr) loss_ = parts_.scaler->scale(loss_);
  loss_.backward();
}

// What all gradients are multiplied by: it undoes the scale of the loss, and clips.
Status Runner::find_gradient_scale() {
  gradient_scale_ = 1;
  if (parts_.scaler == nullptr && parts_.clip_norm == 0) return {};
  STORMO_ASSIGN_OR_RETURN(double norm, parts_.store.gradient_norm());
  if (parts_.scaler != nullptr) {
    gradient_scale_ = parts_.scaler->gradient_scale();
    STORMO_ASSIGN_OR_RETURN(const bool finite, parts_.scaler->check(std::isfinite(norm)));
    parts_.scaler->update();
    outcome_.skipped = !finite;
    norm *= *gradient_scale_;
  }
  if (parts_.clip_norm > 0 && !outcome_.skipped) {
    STORMO_ASSIGN_OR_RETURN(const double clip, clip_coefficient(norm, parts_.clip_norm));
    *gradient_scale_ *= clip;
  }
  return {};
}

Status Runner::update(const ParameterRange& range, double learning_rate) {
  const Interval interval(parts_.lanes, Lane::kCompute, "update");
  if (!gradient_scale_) STORMO_RETURN_IF_ERROR(find_gradient_scale());
  if (outcome_.skipped) return {};
  parts_.before_update();
  return parts_.store.update(range, {.lr = learning_rate, .gradient_scale = *gradient_scale_});
}

}  // namespace stormo::train
