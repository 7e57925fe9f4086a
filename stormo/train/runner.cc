#include <stormo/train/runner.h>

#include <string>
#include <utility>

namespace stormo::train {
namespace {

using plan::ActionKind;

Status bad_plan(const plan::Action& action, const std::string& why) {
  return Status(Code::kBadPlan, std::string(to_string(action.kind)) + " of segments " +
                                    std::to_string(action.first) + ".." +
                                    std::to_string(action.last) + ": " + why);
}

bool covers(const plan::Action& action, const plan::ModelShape& model) {
  return action.first == 0 && action.last + 1 == static_cast<int>(model.segments.size());
}

// The global norm exists only once every gradient is final.
Status check_clipping(const plan::StepPlan& plan) {
  bool updated = false;
  for (const plan::Action& a : plan.actions) {
    if (a.kind == ActionKind::kUpdate) updated = true;
    if (updated && (a.kind == ActionKind::kBackward || a.kind == ActionKind::kAllReduce)) {
      return bad_plan(a, "clipping by the global norm needs all gradients before the first update");
    }
  }
  return {};
}

}  // namespace

Runner::Runner(Task task, Load load, Optimizer& optimizer, double clip_norm, LaneTimer& lanes)
    : task_(std::move(task)),
      load_(std::move(load)),
      optimizer_(optimizer),
      clip_norm_(clip_norm),
      lanes_(lanes) {}

Result<std::unique_ptr<Runner>> Runner::create(const plan::StepPlan& plan,
                                               comm::Communicator& world, Task task, Load load,
                                               Optimizer& optimizer, double clip_norm,
                                               LaneTimer& lanes) {
  STORMO_RETURN_IF_ERROR(plan::validate(plan));
  if (plan.mesh.size() != world.size()) {
    return Status(Code::kBadPlan, "the plan is for " + std::to_string(plan.mesh.size()) +
                                      " rank(s), the job has " + std::to_string(world.size()) +
                                      "; choose strategy 'mirrored', or start one rank");
  }
  if (clip_norm > 0) STORMO_RETURN_IF_ERROR(check_clipping(plan));
  std::unique_ptr<Runner> runner(
      new Runner(std::move(task), std::move(load), optimizer, clip_norm, lanes));
  for (const plan::Action& action : plan.actions) {
    STORMO_ASSIGN_OR_RETURN(Operation operation, runner->prepare(plan, action, world));
    runner->operations_.push_back(std::move(operation));
  }
  return runner;
}

Result<Runner::Operation> Runner::prepare(const plan::StepPlan& plan, const plan::Action& action,
                                          comm::Communicator& world) const {
  Operation operation{.action = action, .parameters = {}, .reducer = nullptr};
  switch (action.kind) {
    case ActionKind::kLoad:
    case ActionKind::kLoss: break;
    case ActionKind::kForward:
    case ActionKind::kBackward:
      if (!covers(action, plan.model)) return bad_plan(action, "the task computes all segments");
      break;
    case ActionKind::kAllReduce: {
      const int axis = plan.mesh.find(action.axis);
      if (axis < 0 || plan.mesh.axes[static_cast<std::size_t>(axis)].size != world.size()) {
        return bad_plan(action, "axis '" + action.axis + "' does not span all ranks");
      }
      STORMO_ASSIGN_OR_RETURN(const Range range, parameters_of(plan.model, action));
      const auto begin = optimizer_.parameters().begin();
      operation.reducer = std::make_unique<GradientReducer>(
          world, std::vector<NamedParameter>(begin + static_cast<std::ptrdiff_t>(range.first),
                                             begin + static_cast<std::ptrdiff_t>(range.last)));
      break;
    }
    case ActionKind::kUpdate: {
      STORMO_ASSIGN_OR_RETURN(operation.parameters, parameters_of(plan.model, action));
      break;
    }
  }
  return operation;
}

// Segments hold consecutive parameters, so their sizes say where each one begins.
Result<Runner::Range> Runner::parameters_of(const plan::ModelShape& model,
                                            const plan::Action& action) const {
  const std::vector<NamedParameter>& parameters = optimizer_.parameters();
  if (covers(action, model)) return Range{0, parameters.size()};
  std::int64_t begin = 0, end = 0;
  for (int s = 0; s <= action.last; ++s) {
    const std::int64_t size = model.segments[static_cast<std::size_t>(s)].num_parameters;
    if (s < action.first) begin += size;
    end += size;
  }
  Range range;
  std::int64_t passed = 0;
  for (std::size_t i = 0; i <= parameters.size(); ++i) {
    if (passed <= begin) range.first = i;
    if (passed <= end) range.last = i;
    if (passed == end && end > begin) return range;
    if (i < parameters.size()) passed += parameters[i].tensor.numel();
  }
  return bad_plan(action, "no parameters of the module begin and end where these segments do");
}

Result<StepOutcome> Runner::step(double learning_rate) {
  outcome_ = {};
  clip_scale_.reset();
  for (Operation& operation : operations_) {
    STORMO_RETURN_IF_ERROR(
        execute(operation, learning_rate).within(to_string(operation.action.kind)));
  }
  batch_ = {};
  output_.reset();
  loss_.reset();
  optimizer_.zero_grad();
  return outcome_;
}

Status Runner::execute(Operation& operation, double learning_rate) {
  const bool has_samples = outcome_.samples > 0;
  switch (operation.action.kind) {
    case ActionKind::kLoad: return load();
    case ActionKind::kForward:
      if (has_samples) {
        const Interval interval(lanes_, Lane::kCompute, "forward");
        output_ = task_.forward(batch_.input);
      }
      return {};
    case ActionKind::kLoss:
      if (has_samples) loss();
      return {};
    case ActionKind::kBackward:
      if (has_samples) {
        const Interval interval(lanes_, Lane::kCompute, "backward");
        loss_.backward();
      }
      return {};
    case ActionKind::kAllReduce:  // the communicator records its Events
      return operation.reducer->reduce(static_cast<double>(outcome_.samples));
    case ActionKind::kUpdate: return update(operation.parameters, learning_rate);
  }
  return {};
}

Status Runner::load() {
  const Interval interval(lanes_, Lane::kData, "load");
  STORMO_ASSIGN_OR_RETURN(batch_, load_());
  outcome_.samples = batch_.size();
  return {};
}

void Runner::loss() {
  const Interval interval(lanes_, Lane::kCompute, "loss");
  loss_ = task_.loss(output_, batch_.target);
  outcome_.loss_sum = loss_.item<double>() * static_cast<double>(outcome_.samples);
}

Status Runner::update(const Range& range, double learning_rate) {
  const Interval interval(lanes_, Lane::kCompute, "update");
  if (clip_norm_ > 0 && !clip_scale_) {
    STORMO_ASSIGN_OR_RETURN(const double norm, optimizer_.gradient_norm());
    STORMO_ASSIGN_OR_RETURN(clip_scale_, clip_coefficient(norm, clip_norm_));
  }
  return optimizer_.step({.lr = learning_rate, .gradient_scale = clip_scale_.value_or(1)},
                         range.first, range.last);
}

}  // namespace stormo::train
