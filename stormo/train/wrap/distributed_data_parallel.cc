#include <stormo/train/wrap/distributed_data_parallel.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/agreement/replica_check.h>
#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/autograd/pass_watch.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/reduction/overlap_trial.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/wrap/wrapped_parameters.h>

namespace stormo::train {

struct DistributedDataParallel::State {
  State(comm::Communicator& w, std::shared_ptr<torch::nn::Module> m, const ReductionOptions& r)
      : world(w),
        module(std::move(m)),
        how(r),
        wrapped(module),
        hooks(wrapped.tensors(),
              {.ready = [this](std::size_t i) { around([this, i] { ready(i); }); },
               .nested = [this] { reducer->defer(); },
               .end = [this] { around([this] { end_of_pass(); }); },
               .abandoned = [this] { abandon(); }}),
        watch([this] {
          if (hooks.enabled() && !hooks.in_pass()) notice_changes();
        }) {
    begin();
  }

  /// With the parameters as they are now.
  void begin() {
    const std::size_t count = wrapped.list().size();
    order.resize(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    position.resize(count);
    arrival_known = false;
    forget_pass();
    overlap.emplace(world, how.overlap, bytes_of(wrapped.list()));
    plan = {};
    set_plan();
  }

  /// From the next pass on in the present form of overlap and order.
  void set_plan() {
    std::vector<NamedParameter> sorted;
    for (std::size_t n = 0; n < order.size(); ++n) {
      sorted.push_back(wrapped.list()[order[n]]);
      position[order[n]] = n;
    }
    ReductionOptions now = how;
    now.overlap = overlap->current();
    if (!sorted.empty()) plan = plan_of_replicas(sorted, world.size(), now);
    TensorMap kept = reducer ? reducer->residuals() : TensorMap();
    reducer = std::make_unique<GradientReducer>(world, std::move(sorted));
    reducer->keep_residuals(std::move(kept));
    reducer->set_weight(weight);
    reducer->on_done(done);
    if (!order.empty()) reducer->set_plan(plan);
  }

  /// This rank alone: a pass may be that of another module, so no other rank is asked.
  void notice_changes() {
    if (wrapped.changed()) {
      wrapped.renew();
      hooks.set_tensors(wrapped.tensors());
      has_changed = true;
    } else if (hooks.renew()) {
      has_changed = true;
    }
  }

  /// Before the first gradient of a pass is used: a collective if parameters have changed.
  void begin_pass() {
    in_pass = true;
    watch.follow_thread();
    throw_if_error(wrapped.check_alone().within("DistributedDataParallel"));
    if (!has_changed) return;
    throw_if_error(check_changed().within(
        "DistributedDataParallel: parameters of the module have changed here since it was wrapped "
        "(thawed, converted, loaded, added); every rank must make the same change, to the same "
        "values, before the same backward pass"));
    has_changed = false;
    begin();
    in_pass = true;
  }

  Status check_changed() {
    if (world.size() == 1) return {};
    TensorMap all, trained;
    for (const auto& p : module->named_parameters()) all.emplace(p.key(), p.value());
    for (const NamedParameter& p : wrapped.list()) trained.emplace(p.name, p.tensor);
    STORMO_RETURN_IF_ERROR(check_same_tensors(world, all));
    return check_replicas(world, visit_all(std::move(trained))).status();
  }

  void ready(std::size_t i) {
    if (!in_pass) begin_pass();
    check(reducer->begin_pass());
    if (!arrival_known && !came[i]) arrival.push_back(static_cast<std::int64_t>(i));
    came[i] = true;
    try {
      reducer->ready(position[i]);
    } catch (const Error& e) {
      check(e.status());
    }
  }

  void end_of_pass() {
    for (const plan::Action& a : plan.actions) {
      if (done && row_of(a.kind).adds_gradients) done(a);
    }
    reduce();
  }

  void abandon() {
    reducer->abandon();
    forget_pass();
  }

  void forget_pass() {
    in_pass = false;
    arrival.clear();
    came.assign(order.size(), false);
  }

  void reduce() {
    check(reducer->reduce());
    check(next_pass());
  }

  static void check(const Status& status) {
    if (status.code() != Code::kMismatch) {
      throw_if_error(status.within("DistributedDataParallel"));
      return;
    }
    throw Error(Status(status.code(), status.within("DistributedDataParallel").message() +
                                          "\n  (every rank must run the same backward passes, over "
                                          "parameters that have changed on all ranks alike)"));
  }

  Status next_pass() {
    in_pass = false;
    if (order.empty() || world.size() == 1) return {};
    STORMO_ASSIGN_OR_RETURN(bool changed, overlap->step_done(world));
    if (overlap->current().kind == Overlap::Kind::kBuckets && !arrival_known) {
      STORMO_RETURN_IF_ERROR(sort_by_arrival());
      changed = true;
    }
    if (changed) set_plan();
    forget_pass();
    return {};
  }

  /// Buckets fill in the order in which rank 0's gradients came in its last pass, the last ones of
  /// the list first; those that did not come go last.
  Status sort_by_arrival() {
    arrival_known = true;
    for (std::size_t i = order.size(); i-- > 0;) {
      if (!came[i]) arrival.push_back(static_cast<std::int64_t>(i));
    }
    STORMO_RETURN_IF_ERROR(world.broadcast(arrival, 0));
    order.assign(arrival.rbegin(), arrival.rend());
    return {};
  }

  comm::Communicator& world;
  std::shared_ptr<torch::nn::Module> module;
  ReductionOptions how;
  WrappedParameters wrapped;
  bool has_changed = false;           // since ranks have agreed about `wrapped`
  bool in_pass = false;               // from its first gradient on
  std::vector<std::size_t> order;     // of the plan: which of `wrapped`
  std::vector<std::size_t> position;  // of each of `wrapped` in the plan
  std::vector<std::int64_t> arrival;  // which of `wrapped`, until their order is known
  std::vector<bool> came;             // of `wrapped`
  bool arrival_known = false;
  std::optional<OverlapTrial> overlap;
  plan::StepPlan plan;
  std::unique_ptr<GradientReducer> reducer;
  DoneAction done;
  Around around = [](const std::function<void()>& work) { work(); };
  double weight = 1;
  BackwardHooks hooks;
  PassWatch watch;
};

DistributedDataParallel::DistributedDataParallel(comm::Communicator& world,
                                                 std::shared_ptr<torch::nn::Module> module,
                                                 const ReductionOptions& how) {
  const auto tensors = named_state(*module);
  throw_if_error(check_same_tensors(world, tensors).within("DistributedDataParallel"));
  throw_if_error(broadcast_values(world, tensors).within("DistributedDataParallel"));
  state_ = std::make_unique<State>(world, std::move(module), how);
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(invalid_argument("DistributedDataParallel: the weight must be a number >= 0, got " +
                                 std::to_string(weight)));
  }
  state_->weight = weight;
  state_->reducer->set_weight(weight);
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : hooks_(ddp.state_->hooks), before_(hooks_.enabled()) {
  hooks_.enable(false);
}

DistributedDataParallel::NoSync::~NoSync() { hooks_.enable(before_); }

void DistributedDataParallel::reduce_gradients() {
  state_->notice_changes();
  state_->begin_pass();
  state_->reduce();
}

bool DistributedDataParallel::any_rank_has(bool mine) {
  std::int64_t some = mine ? 1 : 0;
  throw_if_error(state_->world.all_reduce(std::span(&some, 1), comm::ReduceOp::kMax));
  return some != 0;
}

void DistributedDataParallel::broadcast_buffers() {
  std::map<std::string, torch::Tensor> buffers;
  for (const auto& b : state_->module->named_buffers()) buffers.emplace(b.key(), b.value());
  throw_if_error(broadcast_values(state_->world, buffers).within("DistributedDataParallel"));
}

std::string DistributedDataParallel::overlap() const {
  const Codec codec = state_->how.codec;
  const std::string in = codec == Codec::kNone ? "" : " in " + std::string(to_string(codec));
  return "gradients are reduced " + state_->overlap->describe() + in;
}

const plan::StepPlan& DistributedDataParallel::plan() const { return state_->plan; }

void DistributedDataParallel::run_hooks_in(Around around) { state_->around = std::move(around); }

void DistributedDataParallel::on_action(DoneAction done) {
  state_->done = std::move(done);
  state_->reducer->on_done(state_->done);
}

}  // namespace stormo::train
