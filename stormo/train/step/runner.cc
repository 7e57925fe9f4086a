#include <stormo/train/step/runner.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/project.h>
#include <stormo/protocol/server/exchange_period.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/step/layout.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/world/axis_groups.h>
#include <stormo/train/world/stage_link.h>

namespace stormo::train {

using plan::Action;
using plan::ActionRow;
using plan::Value;

namespace {

bool is_forward(const Action& a) {
  return row_of(a.kind).runs_forward() && !row_of(a.kind).recomputes();
}

bool is_due(const Action& a, const StepAt& at) {
  if (row_of(a.kind).period == plan::Period::kFirstOfPeriod) {
    return protocol::begins_period(at.number, a.every);
  }
  return at.closes || protocol::ends_period(at.number - a.offset, a.every);
}

/// While it lives, the model computes this rank's positions or places, if there is such a group.
class OnlyOwnPart {
 public:
  OnlyOwnPart(const std::shared_ptr<model::Chain>& chain,
              const std::optional<tensor::ContextGroup>& positions,
              const std::optional<tensor::Grid>& places)
      : chain_(positions || places ? chain.get() : nullptr) {
    if (chain_ == nullptr) return;
    if (positions) chain_->compute_positions_with(&*positions);
    if (places) chain_->compute_places_with(&*places);
  }
  ~OnlyOwnPart() {
    if (chain_ == nullptr) return;
    chain_->compute_positions_with(nullptr);
    chain_->compute_places_with(nullptr);
  }
  OnlyOwnPart(const OnlyOwnPart&) = delete;
  OnlyOwnPart& operator=(const OnlyOwnPart&) = delete;

 private:
  model::Chain* chain_;
};

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const plan::StepPlan& plan, Rank rank,
                                               RunnerParts parts) {
  std::unique_ptr<Runner> runner(new Runner(rank, std::move(parts)));
  runner->device_ = device_of(*runner->parts_.task.module);
  runner->parts_.lanes.use_clock_of(runner->device_);
  runner->parts_.store.on_done(runner->parts_.done);
  STORMO_RETURN_IF_ERROR(runner->set_plan(plan));
  return runner;
}

Status Runner::set_plan(const plan::StepPlan& plan, std::optional<plan::ShardRange> shards) {
  if (!batches_.empty()) {
    return Status(Code::kBadPlan, "batches of the plan before are under way");
  }
  STORMO_RETURN_IF_ERROR(analysis::verify(plan));
  STORMO_RETURN_IF_ERROR(adopt(plan, project(plan, rank_), shards));
  assigned_.reset();
  return {};
}

Status Runner::adopt(const plan::StepPlan& plan, plan::StepPlan own,
                     std::optional<plan::ShardRange> shards) {
  STORMO_RETURN_IF_ERROR(check_model(own.model, trainable_parameters(*parts_.task.module)));
  STORMO_RETURN_IF_ERROR(check_layout(own, parts_.store));
  auto chain = chain_of(parts_.task.module, own.model);
  STORMO_RETURN_IF_ERROR(check(plan, chain != nullptr));
  if (plan.logical_shards > 0 && !parts_.global_samples) {
    return Status(Code::kBadPlan,
                  "the plan has logical shards, and the run does not say how many samples the "
                  "global batch has; set RunnerParts::global_samples");
  }
  if (shards && shards->size() > plan.micro_batches) {
    return Status(Code::kBadPlan, "rank " + std::to_string(rank_) + " has " +
                                      std::to_string(shards->size()) +
                                      " logical shards, and the plan fewer micro-batches: " +
                                      std::to_string(plan.micro_batches));
  }
  std::optional<tensor::ContextGroup> context;
  std::optional<tensor::Grid> grid;
  if (parts_.store.made_for()) {
    const AxisGroups& groups = *parts_.store.made_for()->groups;
    STORMO_ASSIGN_OR_RETURN(grid, groups.grid());
    if (own.mesh.find(plan::kContextAxis) >= 0) {
      STORMO_ASSIGN_OR_RETURN(comm::Communicator* const ranks, groups.over({plan::kContextAxis}));
      context.emplace(*ranks, own.attention);
    }
  }
  context_ = std::move(context);
  grid_ = std::move(grid);
  chain_ = std::move(chain);
  is_cut_ = chain_ != nullptr && has_parts(plan);
  whole_ = plan;
  plan_ = std::move(own);
  look_ahead();
  const plan::Part part = sample_part(plan_.mesh, rank_);
  const bool has_loss =
      slice_of(plan_.mesh, rank_).index == 0 &&
      std::ranges::any_of(plan_.actions, [](const Action& a) { return makes(a, Value::kLoss); });
  loss_share_ = has_loss ? 1.0 / part.parts : 0;
  counts_samples_ = has_loss && part.index == 0;
  trains_.clear();
  const auto shapes = flatten(plan_.model);
  for (const std::vector<int>& read : parameters_read(plan_.model)) {
    trains_.push_back(std::ranges::any_of(
        read, [&](int p) { return shapes[static_cast<std::size_t>(p)]->trainable; }));
  }
  take_shards(shards);
  parts_.store.set_plan(plan_);
  return {};
}

void Runner::take_shards(std::optional<plan::ShardRange> shards) {
  sums_.reset();
  shards_ = {};
  if (plan_.logical_shards == 0) return;
  const plan::Part mine = data_part(plan_.mesh, rank_);
  shards_ = shards ? *shards : plan::shards_of(plan_.logical_shards, mine.parts, mine.index);
  std::vector<torch::Tensor> parameters;
  for (const NamedParameter& p : parts_.store.optimizer().parameters()) {
    parameters.push_back(p.tensor);
  }
  sums_.emplace(std::move(parameters), shards_.size());
}

// What an action depends on that comes later in the plan, or in that of a later step.
void Runner::look_ahead() {
  longest_delay_ = longest_delay(whole_);
  versions_.reset();
  if (longest_delay_ > 0 && !whole_.newest_weights) {
    std::vector<torch::Tensor> parameters;
    for (const NamedParameter& p : parts_.store.optimizer().parameters()) {
      parameters.push_back(p.tensor);
    }
    versions_.emplace(std::move(parameters));
  }
  const auto later = [&](std::size_t i, const auto& is) {
    return std::any_of(plan_.actions.begin() + static_cast<std::ptrdiff_t>(i), plan_.actions.end(),
                       is);
  };
  is_recomputed_.clear();
  ends_gradients_.clear();
  ends_shard_.clear();
  for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
    const Action& a = plan_.actions[i];
    is_recomputed_.push_back(is_forward(a) && std::ranges::any_of(plan_.actions, [&](auto& b) {
                               return row_of(b.kind).recomputes() && b.range == a.range &&
                                      b.micro_batch == a.micro_batch;
                             }));
    ends_gradients_.push_back(row_of(a.kind).adds_gradients && !later(i, [&](const Action& b) {
                                return row_of(b.kind).adds_gradients &&
                                       b.micro_batch != a.micro_batch;
                              }));
    ends_shard_.push_back(row_of(a.kind).adds_gradients && !later(i + 1, [&](const Action& b) {
                            return row_of(b.kind).adds_gradients && b.micro_batch == a.micro_batch;
                          }));
  }
}

// What the plan does not say, and a Runner needs.
Status Runner::check(const plan::StepPlan& plan, bool has_segments) const {
  if (plan.scaled_loss != (parts_.scaler != nullptr)) {
    return Status(Code::kBadPlan, plan.scaled_loss ? "the plan scales the loss, the run does not"
                                                   : "the run scales the loss, the plan does not");
  }
  if (plan.clipped != (parts_.clip_norm > 0)) {
    return Status(Code::kBadPlan, plan.clipped
                                      ? "the plan clips gradients, but there is no clip_norm"
                                      : "there is a clip_norm, but the plan clips nothing");
  }
  if (plan.chosen) {
    return Status(Code::kBadPlan,
                  "the plan chooses what a step trains; 'stormo strads train' executes it");
  }
  if (plan.newest_weights && parts_.task.autocast) {
    return Status(Code::kBadPlan,
                  "the plan has newest_weights, but with autocast a backward uses 16-bit copies of "
                  "the weights that its forward made");
  }
  if (plan.mesh.find(plan::kContextAxis) >= 0 && !has_segments) {
    return Status(Code::kBadPlan,
                  "the plan has parts of positions, but the module is no model::Chain");
  }
  if (!plan::place_axes(plan.mesh).empty() && !has_segments) {
    return Status(Code::kBadPlan,
                  "the plan has parts of places, but the module is no model::Chain");
  }
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    if (makes(plan.actions[i], Value::kLoss) && !plan.actions[i].axes.empty() &&
        !parts_.task.split_loss) {
      return Status(Code::kBadPlan, describe(plan, i) +
                                        ": the task has no loss of an output in parts; set "
                                        "Task::split_loss, as to model::split_cross_entropy()");
    }
    const bool part = row_of(plan.actions[i].kind).range == plan::RangeOf::kSegments &&
                      plan.actions[i].range != all_segments(plan.model);
    if (!part || has_segments) continue;
    return Status(Code::kBadPlan, describe(plan, i) +
                                      ": the module is no model::Chain of these segments, so it "
                                      "computes all of them at once");
  }
  const std::vector<std::size_t> order = order_of_batch(plan);
  for (int m = 0; m < plan.micro_batches; ++m) {
    std::vector<plan::Range> forward, backward;
    for (const std::size_t i : order) {
      const Action& a = plan.actions[i];
      if (a.micro_batch != m) continue;
      if (is_forward(a)) forward.push_back(a.range);
      if (row_of(a.kind).passes_gradient()) backward.insert(backward.begin(), a.range);
    }
    if (forward == backward) continue;
    return Status(Code::kBadPlan, "forward and backward of micro-batch " + std::to_string(m) +
                                      " are cut into different ranges of segments");
  }
  return {};
}

Result<StepOutcome> Runner::step(double learning_rate, const StepAt& at) {
  const OnlyOwnPart own_part(chain_, context_, grid_);
  outcome_ = {};
  gradient_scale_ = 1;
  learning_rate_ = learning_rate;
  finishing_ = 0;
  for (current_ = 0; current_ < plan_.actions.size(); ++current_) {
    const Action& action = plan_.actions[current_];
    if (!is_due(action, at)) continue;
    if (makes(action, Value::kBatch)) batches_.emplace_front();
    if (row_of(action.kind).all_batches && longest_delay_ > 0)
      STORMO_RETURN_IF_ERROR(finish_batches());
    STORMO_RETURN_IF_ERROR(act(action));
  }
  if (longest_delay_ > 0) {
    while (batches_.size() > static_cast<std::size_t>(longest_delay_)) batches_.pop_back();
    STORMO_RETURN_IF_ERROR(read_losses());
    return outcome_;
  }
  STORMO_RETURN_IF_ERROR(read_losses());
  batches_.clear();
  if (parts_.store.cut().stages != nullptr)
    STORMO_RETURN_IF_ERROR(parts_.store.cut().stages->drain());
  parts_.store.zero_grad();
  return outcome_;
}

/// The steps that would follow, without their own batches.
Status Runner::finish_batches() {
  const std::size_t agree = current_;
  for (finishing_ = 1; finishing_ <= longest_delay_; ++finishing_) {
    for (current_ = 0; current_ < agree; ++current_) {
      STORMO_RETURN_IF_ERROR(act(plan_.actions[current_]));
    }
  }
  batches_.clear();
  if (versions_) versions_->drain();
  return parts_.store.cut().stages != nullptr ? parts_.store.cut().stages->drain() : Status();
}

/// Null: there is none, before the first load or behind the last one.
Runner::BatchUnderWay* Runner::batch_of(const Action& action) {
  const int loaded_later = action.delay - finishing_;
  if (loaded_later < 0 || static_cast<std::size_t>(loaded_later) >= batches_.size()) return nullptr;
  return &batches_[static_cast<std::size_t>(loaded_later)];
}

Status Runner::act(const Action& action) {
  batch_ = batch_of(action);
  if (batch_ == nullptr && !row_of(action.kind).all_batches) return {};
  std::optional<WeightVersions::Use> use;
  if (versions_ && row_of(action.kind).micro_batch) use.emplace(&*versions_, batch_->weights);
  return execute(action).within(to_string(action.kind));
}

/// What the Runner does by itself; null: the store does it. The communicator records the Events of
/// that, and the store tells when it is done.
Runner::Perform Runner::perform_of(const ActionRow& row) {
  if (row.moves()) return &Runner::move;
  if (row.recomputes()) return &Runner::recompute;
  if (row.runs_forward()) return &Runner::forward;
  if (row.passes_gradient()) return &Runner::backward;
  if (row.adds_gradients) return &Runner::backward_weight;
  if (row.all_batches) return &Runner::agree;
  constexpr std::array<std::pair<Value, Perform>, 7> kMakers = {
      {{Value::kBatch, &Runner::load},
       {Value::kLoss, &Runner::loss},
       {Value::kNorm, &Runner::norm},
       {Value::kUnscaled, &Runner::unscale},
       {Value::kClipped, &Runner::clip},
       {Value::kCommitted, &Runner::commit},
       {Value::kUpdated, &Runner::update}}};
  for (const auto& [value, perform] : kMakers) {
    if (row.makes.has(value)) return perform;
  }
  return nullptr;
}

Status Runner::execute(const Action& action) {
  const ActionRow& row = row_of(action.kind);
  // the values that this rank has shown to whoever saves them may go now
  if (row.changes_parameters) parts_.before_update();
  const Perform perform = perform_of(row);
  if (perform == nullptr) return perform_in_store(action);
  STORMO_RETURN_IF_ERROR((this->*perform)(action));
  if (sums_ && ends_shard_[current_] && action.micro_batch < shards_.size()) {
    sums_->take_gradients();
  }
  if (parts_.done) parts_.done(action);
  return {};
}

Status Runner::perform_in_store(const Action& action) {
  const ActionRow& row = row_of(action.kind);
  std::optional<Interval> interval;
  const bool averages = row.averages() || row.averages_slot;
  if (row.scope == plan::Scope::kServers || averages || row.of_population()) {
    interval.emplace(parts_.lanes, Lane::kCommunication, to_string(action.kind));
  }
  if (row.outer_updates()) interval.emplace(parts_.lanes, Lane::kCompute, to_string(action.kind));
  if (row.places(Value::kGradients, plan::Placement::kRemote)) {
    return parts_.store.served()->push(action, rate(), weight_of_exchange());
  }
  return parts_.store.perform(action, averages ? weight_of_exchange() : weight());
}

Status Runner::commit(const Action& /*action*/) {
  STORMO_RETURN_IF_ERROR(parts_.store.finish_gradients());
  return parts_.commit();
}

Status Runner::apply_updates() {
  for (current_ = 0; current_ < plan_.actions.size(); ++current_) {
    const Action& action = plan_.actions[current_];
    if (makes(action, Value::kUpdated)) STORMO_RETURN_IF_ERROR(act(action));
  }
  batches_.clear();
  parts_.store.zero_grad();
  return {};
}

Status Runner::agree(const Action& /*action*/) {
  STORMO_RETURN_IF_ERROR(read_losses());
  return parts_.agree(outcome_);
}

Status Runner::norm(const Action& /*action*/) {
  const Interval interval(parts_.lanes, Lane::kCompute, "norm");
  STORMO_ASSIGN_OR_RETURN(norm_, parts_.store.gradient_norm());
  outcome_.gradient_norm = norm_;
  return {};
}

Status Runner::unscale(const Action& /*action*/) {
  gradient_scale_ = parts_.scaler->gradient_scale();
  STORMO_ASSIGN_OR_RETURN(const bool finite, parts_.scaler->check(std::isfinite(norm_)));
  parts_.scaler->update();
  outcome_.skipped = !finite;
  norm_ *= gradient_scale_;
  outcome_.gradient_norm = norm_;
  return {};
}

Status Runner::clip(const Action& /*action*/) {
  if (outcome_.skipped) return {};
  STORMO_ASSIGN_OR_RETURN(const double scale, clip_coefficient(norm_, parts_.clip_norm));
  gradient_scale_ *= scale;
  return {};
}

// What is pushed or averaged in different steps has different samples.
double Runner::weight_of_exchange() {
  const Action& a = plan_.actions[current_];
  const std::int64_t before = std::exchange(
      samples_at_exchange_[{a.range.first, a.range.last, a.slot, a.axes}], samples_loaded_);
  return static_cast<double>(samples_loaded_ - before);
}

Status Runner::update(const Action& action) {
  const Interval interval(parts_.lanes, Lane::kCompute, "update");
  if (outcome_.skipped) return {};
  const ParameterRange range = trainable_in(plan_.model, action.range);
  if (longest_delay_ == 0) return parts_.store.update(range, rate());
  std::vector<torch::Tensor> updated;
  for (std::size_t i = range.first; i < range.last; ++i) {
    updated.push_back(parts_.store.optimizer().parameters()[i].tensor);
  }
  std::optional<UncountedChange> uncounted;
  if (versions_) {
    batch_->weights.reset();  // all of it is computed
    versions_->begin_update(range.first, range.last);
  } else {
    uncounted.emplace(updated);
  }
  STORMO_RETURN_IF_ERROR(parts_.store.update(range, rate()));
  for (torch::Tensor& t : updated) t.mutable_grad().reset();
  return {};
}

}  // namespace stormo::train
