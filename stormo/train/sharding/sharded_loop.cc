#include <stormo/train/sharding/sharded_loop.h>

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/tensor/dtype.h>
#include <stormo/tensor/model_shape.h>

namespace stormo::train {

namespace autograd = torch::autograd;
using parallel::ShardingOrder;

namespace {

/// What rounds gradients to the type that they travel in.
Codec codec_of(const ShardPrecision& precision) {
  if (!precision.reduce) return Codec::kNone;
  const DType type = tensor::dtype_of(*precision.reduce).take_or_throw();
  for (const CodecRow& row : codec_rows()) {
    if (row.type == type) return row.codec;
  }
  return Codec::kNone;
}

}  // namespace

ShardedLoop::ShardedLoop(const ShardingGroups& groups, const ShardingOptions& options)
    : units_(groups, options) {}

void ShardedLoop::add(const std::string& name, std::vector<NamedParameter> own,
                      const std::vector<torch::Tensor>& borrowed, const ShardPrecision& precision) {
  plan::SegmentShape segment{.name = name, .parameters = {}, .borrowed = {}};
  for (const torch::Tensor& p : borrowed) {
    const auto known = numbers_.find(p.unsafeGetTensorImpl());
    if (known != numbers_.end()) segment.borrowed.push_back(known->second);
  }
  std::ranges::sort(segment.borrowed);
  const auto repeated = std::ranges::unique(segment.borrowed);
  segment.borrowed.erase(repeated.begin(), repeated.end());
  for (const NamedParameter& p : own) {
    const int next = static_cast<int>(numbers_.size());
    numbers_.emplace(p.tensor.unsafeGetTensorImpl(), next);
    segment.parameters.push_back(tensor::parameter_shape(p.name, p.tensor));
    segment.parameters.back().rows = 0;  // no codec with factors
  }
  model_.segments.push_back(std::move(segment));
  order_.reset();
  told_.clear();
  codecs_.push_back(codec_of(precision));
  states_types_ = states_types_ && !precision.compute && !precision.reduce;
  units_.add(std::move(own), borrowed, precision);
}

parallel::Sharding ShardedLoop::sharding() const {
  const ShardingOptions& options = units_.options();
  return {.stage = options.stage,
          .ranks = units_.groups().shards->size(),
          .prefetch = options.prefetch,
          .reshard_after_forward = options.reshard_after_forward};
}

plan::StepPlan ShardedLoop::replicas() const {
  const plan::StepPlan one = parallel::one_device(model_);
  const comm::Communicator* replicas = units_.groups().replicas;
  if (replicas == nullptr) return one;
  return parallel::compose(one, parallel::mirrored(replicas->size())).take_or_throw();
}

plan::StepPlan ShardedLoop::plan() const {
  plan::StepPlan out = parallel::compose(replicas(), parallel::sharded(sharding())).take_or_throw();
  for (plan::Action& a : out.actions) a = in_form(std::move(a));
  return out;
}

plan::Action ShardedLoop::in_form(plan::Action action) const {
  if (!row_of(action.kind).reduces) return action;
  const std::optional<int> unit = units_.find(action.range);
  const Codec codec = unit ? codecs_[static_cast<std::size_t>(*unit)] : Codec::kNone;
  parallel::ReductionForm form{.codec = codec};
  if (units_.options().deterministic) form = parallel::in_one_order(codec);
  set_form(action, form);
  return action;
}

void ShardedLoop::set_plan() {
  if (units_.follows() || units_.size() == 0 || units_.groups().world->size() == 1) return;
  throw_if_failed(units_.set_plan(plan(), states_types_));
}

ShardingOrder& ShardedLoop::order() {
  if (!order_) {
    set_plan();
    // the first step gathers as every other does
    throw_if_failed(units_.make_stale(/*frozen=*/false));
    order_.emplace(sharding(), replicas(), [this](const plan::Action& a) { perform(in_form(a)); });
  }
  return *order_;
}

void ShardedLoop::perform(const plan::Action& action) {
  throw_if_failed(units_.perform(action, weight).within(to_string(action.kind)));
  if (done_) done_(action);
}

void ShardedLoop::tell(const std::function<bool(const plan::ActionRow&)>& is, plan::Range of) {
  if (!done_) return;
  if (told_.empty()) {
    told_ = parallel::compose(replicas(), parallel::clip_gradients(), parallel::sharded(sharding()))
                .take_or_throw()
                .actions;
  }
  for (plan::Action a : told_) {
    if (!is(row_of(a.kind)) || a.range != of) continue;
    if (row_of(a.kind).micro_batch) a.micro_batch = micro_batch_;
    done_(a);
  }
}

void ShardedLoop::did(plan::Value made) {
  const bool of_all = made == plan::Value::kUpdated;
  tell([=](const plan::ActionRow& row) { return row.makes.has(made); },
       of_all ? all_parameters(model_) : plan::Range());
}

void ShardedLoop::before_forward(int unit) {
  order().before_forward(unit);
  throw_if_failed(units_.make_readable(unit));
}

void ShardedLoop::after_forward(int unit, const std::vector<torch::Tensor>& outputs) {
  const bool recorded =
      std::ranges::any_of(outputs, [](const auto& t) { return t.defined() && t.requires_grad(); });
  const auto call = end_forward(unit, recorded, torch::GradMode::is_enabled());
  if (!recorded) return;
  for (const torch::Tensor& output : outputs) watch(output, call);
}

ShardingOrder::Call ShardedLoop::end_forward(int unit, bool recorded, bool differentiated) {
  tell([](const plan::ActionRow& row) { return row.runs_forward(); }, {unit, unit});
  if (differentiated && !recorded) unreached_.push_back(unit);
  return order().after_forward(unit, recorded);
}

// A hook on a tensor runs before the node that made it. What hangs there keeps the call, so the
// record of a forward ends with its graph.
void ShardedLoop::watch(const torch::Tensor& output, const ShardingOrder::Call& call) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([weak = weak_from_this(), call](const torch::Tensor&) {
    if (const auto loop = weak.lock()) loop->on_gradient(call);
  });
}

void ShardedLoop::on_gradient(const ShardingOrder::Call& call) {
  const torch::NoGradGuard no_grad;
  const int now = autograd::get_current_graph_task_id();
  if (pass_ != now) {
    pass_ = now;
    begin_pass();
    autograd::Engine::get_default_engine().queue_callback([loop = shared_from_this()] {
      if (autograd::get_current_node() != nullptr) {
        throw_if_failed(invalid_argument(
            "backward() was called inside a backward pass, over a whole unit; put activation "
            "checkpointing inside of units, not around them"));
      }
      const torch::NoGradGuard no_gradients;
      loop->end_pass();
      loop->pass_ = -1;
    });
  }
  before_backward(call);
}

void ShardedLoop::begin_pass() {
  computing_.reset();
  order().begin_pass(synchronise);
}

void ShardedLoop::before_backward(const ShardingOrder::Call& call) {
  end_backward();
  order().before_backward(call);
  throw_if_failed(units_.make_readable(call->segment));
  computing_ = call->segment;
}

void ShardedLoop::end_backward() {
  if (!computing_) return;
  tell([](const plan::ActionRow& row) { return row.adds_gradients; }, {*computing_, *computing_});
  computing_.reset();
}

void ShardedLoop::end_pass() {
  end_backward();
  for (; !unreached_.empty(); unreached_.pop_back()) {
    computing_ = unreached_.back();
    end_backward();
  }
  order().end_pass();
  micro_batch_ = synchronise ? 0 : micro_batch_ + 1;
  if (synchronise) throw_if_failed(units_.make_stale(/*frozen=*/false));
}

void ShardedLoop::gather_all() {
  set_plan();
  throw_if_failed(units_.gather_all());
}

// All units are gathered, so nothing can fail.
void ShardedLoop::release_all() {
  (void)units_.release_all();
  (void)units_.make_stale(/*frozen=*/false);
  if (!order_) return;
  order_->set_whole(units_.options().stage < 3, /*frozen=*/true);
  order_->set_whole(false, /*frozen=*/false);
}

void ShardedLoop::keep_gathered() {
  gather_all();
  units_.keep_all();
  if (order_) order_->set_whole(true, /*frozen=*/true);
}

void ShardedLoop::parameters_changed() {
  throw_if_failed(units_.make_stale(/*frozen=*/true));
  if (order_) order_->set_whole(false, /*frozen=*/true);
}

void ShardedLoop::join_step() {
  const torch::NoGradGuard no_grad;
  std::vector<ShardingOrder::Call> calls;
  bool recorded = false;  // from the first trainable unit on
  for (int unit = 0; unit < units_.size(); ++unit) {
    before_forward(unit);
    recorded = recorded || order().trains(unit);
    const auto call = end_forward(unit, recorded, /*differentiated=*/true);
    if (recorded) calls.push_back(call);
  }
  const double before = std::exchange(weight, 0);
  begin_pass();
  for (; !calls.empty(); calls.pop_back()) before_backward(calls.back());
  end_pass();
  weight = before;
}

}  // namespace stormo::train
