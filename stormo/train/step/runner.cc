#include <stormo/train/step/runner.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <torch/csrc/autograd/custom_function.h>

#include <stormo/analysis/step/step_verify.h>
#include <stormo/plan/project.h>
#include <stormo/train/autograd/generator_state.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/step/non_finite.h>
#include <stormo/train/world/stage_link.h>

namespace stormo::train {

using plan::Action;
using plan::ActionKind;

namespace {

bool is_due(const Action& a, const StepAt& at) {
  const bool begins = a.kind == ActionKind::kPull || a.kind == ActionKind::kExchange;
  if (begins) return (at.number - 1) % a.every == 0;
  return at.closes || at.number % a.every == 0;
}

/// Where the graph is cut: what a piece computes with is no leaf, so that its first operation may
/// be in place as in one graph. It shares memory and version with the output of the piece before.
struct Boundary : torch::autograd::Function<Boundary> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

/// The module, if it is a chain that is cut into segments as `model` is; else null.
std::shared_ptr<model::Chain> chain_of(const std::shared_ptr<torch::nn::Module>& module,
                                       const plan::ModelShape& model) {
  const auto same = [](const plan::SegmentShape& a, const plan::SegmentShape& b) {
    constexpr auto kElements = &plan::ParameterShape::elements;
    return a.borrowed == b.borrowed &&
           std::ranges::equal(a.parameters, b.parameters, {}, kElements, kElements);
  };
  auto chain = std::dynamic_pointer_cast<model::Chain>(module);
  if (chain == nullptr) return nullptr;
  return std::ranges::equal(chain->shape().segments, model.segments, same) ? chain : nullptr;
}

Status changes_input(plan::Range segments, const std::string& so) {
  return Status(Code::kBadPlan, "segments " + std::to_string(segments.first) + "-" +
                                    std::to_string(segments.last) +
                                    " change their input in place, so " + so);
}

/// Of a tensor that crosses the boundary behind a segment; another one for each.
StageLink::Key key_of(const plan::StepPlan& plan, ActionKind kind, int boundary, int micro_batch) {
  const auto segments = static_cast<StageLink::Key>(plan.model.segments.size());
  const StageLink::Key gradient = kind == ActionKind::kMoveGradient ? 1 : 0;
  return (static_cast<StageLink::Key>(micro_batch) * 2 + gradient) * segments +
         static_cast<StageLink::Key>(boundary);
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const plan::StepPlan& plan, Rank rank,
                                               RunnerParts parts) {
  std::unique_ptr<Runner> runner(new Runner(rank, std::move(parts)));
  runner->parts_.store.on_done(runner->parts_.done);
  STORMO_RETURN_IF_ERROR(runner->follow(plan));
  return runner;
}

Status Runner::follow(const plan::StepPlan& plan) {
  STORMO_RETURN_IF_ERROR(analysis::verify(plan));
  plan::StepPlan own = project(plan, rank_);
  STORMO_RETURN_IF_ERROR(check_model(own.model, trainable_parameters(*parts_.task.module)));
  STORMO_RETURN_IF_ERROR(parts_.store.check(own));
  auto chain = chain_of(parts_.task.module, own.model);
  STORMO_RETURN_IF_ERROR(check(plan, chain != nullptr));
  chain_ = std::move(chain);
  whole_ = plan;
  plan_ = std::move(own);
  look_ahead();
  knows_loss_ = std::ranges::count(plan_.actions, ActionKind::kLoss, &Action::kind) > 0 &&
                slice_of(plan_.mesh, rank_).index == 0;
  trains_.clear();
  const auto shapes = flatten(plan_.model);
  for (const std::vector<int>& read : parameters_read(plan_.model)) {
    trains_.push_back(std::ranges::any_of(
        read, [&](int p) { return shapes[static_cast<std::size_t>(p)]->trainable; }));
  }
  parts_.store.follow(plan_);
  return {};
}

// What an action depends on that comes later in the plan.
void Runner::look_ahead() {
  const auto later = [&](std::size_t i, const auto& is) {
    return std::any_of(plan_.actions.begin() + static_cast<std::ptrdiff_t>(i), plan_.actions.end(),
                       is);
  };
  is_forgotten_.clear();
  ends_gradients_.clear();
  for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
    const Action& a = plan_.actions[i];
    is_forgotten_.push_back(a.kind == ActionKind::kForward && later(i, [&](const Action& b) {
                              return b.kind == ActionKind::kRecompute && b.range == a.range &&
                                     b.micro_batch == a.micro_batch;
                            }));
    ends_gradients_.push_back(a.kind == ActionKind::kBackward && !later(i, [&](const Action& b) {
                                return b.kind == ActionKind::kBackward &&
                                       b.micro_batch != a.micro_batch;
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
  if (num_stages(plan.mesh) > 1 && parts_.store.stages() == nullptr) {
    return Status(Code::kBadPlan, "the plan has stages, but the store moves nothing between them");
  }
  if (plan.mesh.find(plan::kTensorAxis) >= 0 && parts_.store.split_group() == nullptr) {
    return Status(Code::kBadPlan, "the plan has slices, but the store has whole parameters");
  }
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    if (plan.actions[i].kind == ActionKind::kLoss && !plan.actions[i].axes.empty() &&
        !parts_.task.split_loss) {
      return Status(Code::kBadPlan, describe(plan, i) +
                                        ": the task has no loss of an output in parts; set "
                                        "Task::split_loss, as to model::split_cross_entropy()");
    }
    const bool part = range_of(plan.actions[i].kind) == plan::RangeOf::kSegments &&
                      plan.actions[i].range != all_segments(plan.model);
    if (!part || has_segments) continue;
    return Status(Code::kBadPlan, describe(plan, i) +
                                      ": the module is no model::Chain of these segments, so it "
                                      "computes all of them at once");
  }
  for (int m = 0; m < plan.micro_batches; ++m) {
    std::vector<plan::Range> forward, backward;
    for (const Action& a : plan.actions) {
      if (a.micro_batch != m) continue;
      if (a.kind == ActionKind::kForward) forward.push_back(a.range);
      if (a.kind == ActionKind::kBackward) backward.insert(backward.begin(), a.range);
    }
    if (forward == backward) continue;
    return Status(Code::kBadPlan, "forward and backward of micro-batch " + std::to_string(m) +
                                      " are cut into different ranges of segments");
  }
  return {};
}

Result<StepOutcome> Runner::step(double learning_rate, const StepAt& at) {
  outcome_ = {};
  gradient_scale_ = 1;
  for (current_ = 0; current_ < plan_.actions.size(); ++current_) {
    const Action& action = plan_.actions[current_];
    if (!is_due(action, at)) continue;
    STORMO_RETURN_IF_ERROR(execute(action, learning_rate).within(to_string(action.kind)));
  }
  batches_.clear();
  if (parts_.store.stages() != nullptr) STORMO_RETURN_IF_ERROR(parts_.store.stages()->drain());
  parts_.store.zero_grad();
  return outcome_;
}

Status Runner::execute(const Action& action, double learning_rate) {
  const auto done = [&](Status status) {
    if (parts_.done && status.ok()) parts_.done(action);
    return status;
  };
  switch (action.kind) {
    case ActionKind::kLoad: return done(load());
    case ActionKind::kForward: return done(forward(action));
    case ActionKind::kLoss: return done(loss(action));
    case ActionKind::kRecompute: return done(recompute(action));
    case ActionKind::kBackward: return done(backward(action));
    case ActionKind::kMoveActivation:
    case ActionKind::kMoveGradient: return done(move(action));
    // the communicator records their Events, and the store tells when they are done
    case ActionKind::kCount:
    case ActionKind::kAllGather:
    case ActionKind::kReshard:
    case ActionKind::kAllReduce:
    case ActionKind::kReduceScatter:
    case ActionKind::kReleaseGradients:
    case ActionKind::kSumTied:
    case ActionKind::kFindUnused:
    case ActionKind::kShareGradients:
    case ActionKind::kShareParameters: return parts_.store.perform(action, weight());
    case ActionKind::kPull: return pull(action);
    case ActionKind::kPush: return push(action, learning_rate);
    case ActionKind::kAverage: return done(average(action));
    case ActionKind::kExchange: return done(exchange(action));
    case ActionKind::kNorm: return done(norm());
    case ActionKind::kUnscale: return done(unscale());
    case ActionKind::kClip: return done(clip());
    case ActionKind::kUpdate: return done(update(action, learning_rate));
    case ActionKind::kAgree: return done(parts_.agree(outcome_));
  }
  return {};
}

Status Runner::load() {
  const Interval interval(parts_.lanes, Lane::kData, "load");
  STORMO_ASSIGN_OR_RETURN(const data::Batch batch, parts_.load());
  batch_samples_ = batch.size();
  outcome_.samples = knows_loss_ ? batch.size() : 0;
  samples_since_exchange_ += batch.size();
  batches_.clear();
  if (plan_.micro_batches == 1) {
    batches_.push_back({.batch = batch, .pieces = {}, .loss = {}});
    return {};
  }
  const auto inputs = batch.input.tensor_split(plan_.micro_batches);
  const auto targets = batch.target.tensor_split(plan_.micro_batches);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    batches_.push_back({.batch = {inputs[i], targets[i]}, .pieces = {}, .loss = {}});
  }
  return {};
}

Status Runner::forward(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  Piece piece{.segments = action.range};
  STORMO_ASSIGN_OR_RETURN(torch::Tensor x, input_of(action, piece));
  const Interval interval(parts_.lanes, Lane::kCompute, "forward");
  if (is_forgotten_[current_]) {
    STORMO_RETURN_IF_ERROR(forget(piece, x));
  } else {
    // of another stage, which must not find it changed
    const bool is_borrowed = is_boundary(plan_.model, action.range.first - 1);
    const torch::Tensor given = is_borrowed ? x : torch::Tensor();
    const auto version = is_borrowed ? given._version() : 0;
    piece.output = compute(action.range, std::move(x));
    piece.wants_gradient = piece.output.requires_grad();
    if (is_borrowed && given._version() != version) {
      return changes_input(action.range, "no stage of a pipeline can begin with them");
    }
  }
  m.pieces.push_back(std::move(piece));
  return {};
}

/// What a piece computes with: the batch, or the output of the piece before, where the graph is
/// cut.
Result<torch::Tensor> Runner::input_of(const Action& action, Piece& piece) {
  MicroBatch& m = at(action);
  if (action.range.first == 0) return m.batch.input;
  if (is_boundary(plan_.model, action.range.first - 1)) {
    STORMO_ASSIGN_OR_RETURN(torch::Tensor x, moved(ActionKind::kMoveActivation,
                                                   action.range.first - 1, action.micro_batch));
    if (!x.is_floating_point()) return x;
    piece.input = x.requires_grad_();
  } else {
    Piece& before = m.pieces.back();
    // else no backward comes there
    if (!before.wants_gradient) return std::exchange(before.output, {});
    piece.input = before.output.detach().requires_grad_();
  }
  return Boundary::apply(piece.input);
}

/// Computes a piece of which nothing but its input is kept.
Status Runner::forget(Piece& piece, const torch::Tensor& x) const {
  const torch::NoGradGuard no_grad;
  piece.kept = x.detach();
  piece.generator = generator_state();
  const auto version = piece.kept._version();
  piece.output = compute(piece.segments, piece.kept);
  if (piece.kept._version() != version) {
    return changes_input(piece.segments, "they cannot be computed again; train without recompute");
  }
  const auto first = trains_.begin() + piece.segments.first;
  piece.wants_gradient =
      piece.output.is_floating_point() &&
      (piece.input.defined() ||
       std::find(first, first + piece.segments.size(), true) != first + piece.segments.size());
  return {};
}

Status Runner::recompute(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const auto piece = std::ranges::find(m.pieces, action.range, &Piece::segments);
  torch::Tensor x = std::exchange(piece->kept, {});
  if (!piece->wants_gradient) return {};
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  const Interval interval(parts_.lanes, Lane::kCompute, "recompute");
  const GeneratorAt same_numbers(piece->generator);
  if (piece->input.defined()) x = Boundary::apply(piece->input);
  piece->output = compute(action.range, std::move(x));
  return {};
}

torch::Tensor Runner::compute(plan::Range segments, torch::Tensor x) const {
  const plan::Range all = all_segments(plan_.model);
  std::optional<Autocast> autocast;
  if (parts_.task.autocast) autocast.emplace(at::kCPU, *parts_.task.autocast);
  if (segments == all) {
    x = parts_.task.forward(x);
  } else {
    for (int s = segments.first; s <= segments.last; ++s) {
      x = chain_->segments()[static_cast<std::size_t>(s)]->forward(std::move(x));
    }
  }
  return autocast && segments.last == all.last ? x.to(torch::kFloat32) : x;  // for the loss
}

Status Runner::loss(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const Interval interval(parts_.lanes, Lane::kCompute, "loss");
  const torch::Tensor& output = m.pieces.back().output;
  m.loss = action.axes.empty()
               ? parts_.task.loss(output, m.batch.target)
               : parts_.task.split_loss(output, m.batch.target, *parts_.store.split_group());
  const double value = m.loss.item<double>();
  if (knows_loss_) outcome_.loss_sum += value * static_cast<double>(m.batch.size());
  if (std::isfinite(value)) return {};
  return invalid_argument("rank " + std::to_string(rank_) + ": the loss is " +
                          std::to_string(value) + "; not finite first: " + where_not_finite(m) +
                          "; lower the learning rate, clip gradients or check the data");
}

std::string Runner::where_not_finite(const MicroBatch& m) const {
  return parts_.store.always_readable()
             ? first_non_finite(parts_.task, m.batch)
             : first_non_finite(parts_.store.pieces(), m.batch, m.pieces.back().output);
}

/// The gradient of the output of a backward's segments; undefined where nothing behind them looks
/// at it.
Result<torch::Tensor> Runner::gradient_of(const Action& action) {
  MicroBatch& m = at(action);
  if (is_boundary(plan_.model, action.range.last)) {
    return moved(ActionKind::kMoveGradient, action.range.last, action.micro_batch);
  }
  const auto piece = std::ranges::find(m.pieces, action.range.last + 1,
                                       [](const Piece& p) { return p.segments.first; });
  const torch::Tensor gradient = piece->input.defined() ? piece->input.grad() : torch::Tensor();
  m.pieces.erase(piece);
  return gradient;
}

// The gradients of all passes add up to that of the mean over this rank's samples.
Status Runner::backward(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const auto piece = std::ranges::find(m.pieces, action.range, &Piece::segments);
  const torch::Tensor output = std::move(piece->output);
  piece->kept.reset();
  const bool last = action.range.last == all_segments(plan_.model).last;
  torch::Tensor gradient;
  if (!last) {
    STORMO_ASSIGN_OR_RETURN(gradient, gradient_of(action));
  }
  if (action.range.first == 0) m.pieces.erase(piece);  // no gradient of its input
  // nothing before here is trained, or nothing after it looks at it
  if (!output.requires_grad() || !(last || gradient.defined())) return {};
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  parts_.store.begin_backward(ends_gradients_[current_]);
  const Interval interval(parts_.lanes, Lane::kCompute, "backward");
  if (!last) {
    output.backward(gradient);
    return {};
  }
  torch::Tensor loss = std::move(m.loss);
  if (plan_.micro_batches > 1) loss = loss * (static_cast<double>(m.batch.size()) / weight());
  if (parts_.scaler != nullptr) loss = parts_.scaler->scale(loss);
  loss.backward();
  return {};
}

/// The sender goes on at once. The receiver waits when it computes with the tensor.
Status Runner::move(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  StageLink& link = *parts_.store.stages();
  const bool activation = action.kind == ActionKind::kMoveActivation;
  const auto [from, to] = ends_of(action);
  const auto stage = [&](int segment) {
    return plan_.model.segments[static_cast<std::size_t>(segment)].stage;
  };
  const StageLink::Key key = key_of(plan_, action.kind, action.range.first, action.micro_batch);
  const torch::IntArrayRef like = m.batch.input.sizes();
  if (stage(from) != link.stage()) return link.expect(stage(from), key, like);
  const auto piece = std::ranges::find(m.pieces, from, [activation](const Piece& p) {
    return activation ? p.segments.last : p.segments.first;
  });
  if (activation) return link.send(stage(to), key, piece->output, like);
  const torch::Tensor gradient = piece->input.defined() ? piece->input.grad() : torch::Tensor();
  m.pieces.erase(piece);
  return link.send(stage(to), key, gradient, like);
}

/// What a move across the boundary behind a segment has brought to this rank.
Result<torch::Tensor> Runner::moved(ActionKind kind, int boundary, int micro_batch) {
  const int sender = kind == ActionKind::kMoveActivation ? boundary : boundary + 1;
  const Interval interval(parts_.lanes, Lane::kWait, to_string(kind));
  return parts_.store.stages()->receive(
      plan_.model.segments[static_cast<std::size_t>(sender)].stage,
      key_of(plan_, kind, boundary, micro_batch));
}

Status Runner::norm() {
  const Interval interval(parts_.lanes, Lane::kCompute, "norm");
  STORMO_ASSIGN_OR_RETURN(norm_, parts_.store.gradient_norm());
  return {};
}

Status Runner::unscale() {
  gradient_scale_ = parts_.scaler->gradient_scale();
  STORMO_ASSIGN_OR_RETURN(const bool finite, parts_.scaler->check(std::isfinite(norm_)));
  parts_.scaler->update();
  outcome_.skipped = !finite;
  norm_ *= gradient_scale_;
  return {};
}

Status Runner::clip() {
  if (outcome_.skipped) return {};
  STORMO_ASSIGN_OR_RETURN(const double scale, clip_coefficient(norm_, parts_.clip_norm));
  gradient_scale_ *= scale;
  return {};
}

// The values that this rank has shown to whoever saves them may go now.
Status Runner::pull(const Action& action) {
  const Interval interval(parts_.lanes, Lane::kCommunication, "pull");
  parts_.before_update();
  return parts_.store.perform(action, weight());
}

Status Runner::push(const Action& action, double learning_rate) {
  const Interval interval(parts_.lanes, Lane::kCommunication, "push");
  return parts_.store.push(action, rate(learning_rate), weight_of_exchange());
}

Status Runner::average(const Action& action) {
  const Interval interval(parts_.lanes, Lane::kCommunication, "average");
  parts_.before_update();
  return parts_.store.perform(action, weight_of_exchange());
}

Status Runner::exchange(const Action& action) {
  const Interval interval(parts_.lanes, Lane::kCommunication, "exchange");
  return parts_.store.perform(action, weight());
}

double Runner::weight_of_exchange() {
  return static_cast<double>(std::exchange(samples_since_exchange_, 0));
}

Status Runner::update(const Action& action, double learning_rate) {
  const Interval interval(parts_.lanes, Lane::kCompute, "update");
  if (outcome_.skipped) return {};
  parts_.before_update();
  return parts_.store.update(trainable_in(plan_.model, action.range), rate(learning_rate));
}

StepRate Runner::rate(double learning_rate) const {
  const double loss =
      outcome_.samples > 0 ? outcome_.loss_sum / static_cast<double>(outcome_.samples) : 0;
  return {.lr = learning_rate, .gradient_scale = gradient_scale_, .loss = loss};
}

}  // namespace stormo::train
