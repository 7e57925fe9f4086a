#include <stormo/train/wrap/distributed_data_parallel.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/reduction/overlap_trial.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

struct DistributedDataParallel::State {
  State(comm::Communicator& w, std::shared_ptr<torch::nn::Module> m, const ReductionOptions& r)
      : world(w),
        module(std::move(m)),
        how(r),
        parameters(trainable_parameters(*module)),
        order(parameters.size()),
        position(parameters.size()),
        came(parameters.size()),
        overlap(w, how.overlap, bytes_of(parameters)),
        hooks(tensors(), {.ready = [this](std::size_t i) { ready(i); },
                          .nested = [this] { reducer->hold(); },
                          .end = [this] { end_of_pass(); },
                          .abandoned = [this] { abandon(); }}) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    follow();
  }

  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> out;
    for (const NamedParameter& p : parameters) out.push_back(p.tensor);
    return out;
  }

  /// From the next pass on in the present form of overlap and order.
  void follow() {
    std::vector<NamedParameter> sorted;
    for (std::size_t n = 0; n < order.size(); ++n) {
      sorted.push_back(parameters[order[n]]);
      position[order[n]] = n;
    }
    if (!sorted.empty()) plan = plan_of_replicas(sorted, world.size(), overlap.current());
    reducer = std::make_unique<GradientReducer>(world, std::move(sorted), how);
    reducer->set_weight(weight);
    reducer->on_done(done);
    if (!parameters.empty()) reducer->follow(plan);
  }

  void ready(std::size_t i) {
    throw_if_error(reducer->begin_pass().within("DistributedDataParallel"));
    if (!arrival_known && !came[i]) arrival.push_back(static_cast<std::int64_t>(i));
    came[i] = true;
    reducer->ready(position[i]);
  }

  void end_of_pass() {
    if (done) {
      done({.kind = plan::ActionKind::kBackward, .range = all_segments(plan.model)});
    }
    reduce();
  }

  void abandon() {
    reducer->abandon();
    arrival.clear();
    came.assign(came.size(), false);
  }

  void reduce() {
    throw_if_error(reducer->reduce().within("DistributedDataParallel"));
    throw_if_error(next_pass().within("DistributedDataParallel"));
  }

  Status next_pass() {
    if (parameters.empty() || world.size() == 1) return {};
    STORMO_ASSIGN_OR_RETURN(bool changed, overlap.step_done(world));
    if (overlap.current().kind == Overlap::Kind::kBuckets && !arrival_known) {
      STORMO_RETURN_IF_ERROR(sort_by_arrival());
      changed = true;
    }
    if (changed) follow();
    arrival.clear();
    came.assign(came.size(), false);
    return {};
  }

  /// Buckets fill in the order in which rank 0's gradients came in its last pass, the last ones of
  /// the list first; those that did not come go last.
  Status sort_by_arrival() {
    arrival_known = true;
    for (std::size_t i = parameters.size(); i-- > 0;) {
      if (!came[i]) arrival.push_back(static_cast<std::int64_t>(i));
    }
    STORMO_RETURN_IF_ERROR(world.broadcast(arrival, 0));
    order.assign(arrival.rbegin(), arrival.rend());
    return {};
  }

  comm::Communicator& world;
  std::shared_ptr<torch::nn::Module> module;
  ReductionOptions how;
  std::vector<NamedParameter> parameters;  // in the module's order
  std::vector<std::size_t> order;          // in the plan's: which of `parameters`
  std::vector<std::size_t> position;       // of each of `parameters` in the plan
  std::vector<std::int64_t> arrival;       // which of `parameters`, until their order is known
  std::vector<bool> came;                  // by parameter
  bool arrival_known = false;
  OverlapTrial overlap;
  plan::StepPlan plan;
  std::unique_ptr<GradientReducer> reducer;
  DoneAction done;
  double weight = 1;
  BackwardHooks hooks;
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

void DistributedDataParallel::reduce_gradients() { state_->reduce(); }

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
  const auto& type = state_->how.reduce_type;
  const std::string in = type ? std::string(" in ") + torch::toString(*type) : "";
  return "gradients are reduced " + state_->overlap.describe() + in;
}

const plan::StepPlan& DistributedDataParallel::plan() const { return state_->plan; }

void DistributedDataParallel::on_action(DoneAction done) {
  state_->done = std::move(done);
  state_->reducer->on_done(state_->done);
}

}  // namespace stormo::train
