// Sharded data parallelism.
//
// Idea: replicas that all hold the optimizer's state (and gradients, and parameters) hold the same
// thing N times. An all-reduce is a reduce-scatter and an all-gather; between the two, each rank
// can update its part alone. So stages 1 and 2 send what an all-reduce sends, 2K(N-1)/N bytes, and
// only stage 3, which gathers for forward and for backward, sends half as much again. Forward and
// backward are cut into segments: while one computes, its neighbours can be on their way, and no
// more than a few are whole. Papers: S. Rajbhandari et al., "ZeRO: memory optimizations toward
// training trillion parameter models", SC 2020; Y. Zhao et al., "PyTorch FSDP", VLDB 2023, for
// units and the hybrid.
#include <stormo/parallel/sharding/sharded.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/parallel/sharding/shard_stages.h>
#include <stormo/parallel/sharding/sharding_order.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;

/// Cuts computations into segments and tells them to a ShardingOrder.
class Sharder {
 public:
  Sharder(const Sharding& how, const plan::StepPlan& in)
      : out_(in),
        calls_(static_cast<std::size_t>(in.micro_batches),
               std::vector<ShardingOrder::Call>(in.model.segments.size())),
        order_(how, in, [this](const Action& a) { out_.actions.push_back(a); }) {
    out_.actions.clear();
  }

  void add(const Action& a) {
    const plan::ActionRow& row = row_of(a.kind);
    if (row.runs_forward() && !row.recomputes()) {
      for (int s = a.range.first; s <= a.range.last; ++s) forward(a, s);
      return;
    }
    if (row.passes_gradient() && row.adds_gradients) {
      for (int s = a.range.last; s >= a.range.first; --s) backward(a, s);
      return;
    }
    // of parts: the order has it
    if (row.places(plan::Value::kGradients, plan::Placement::kReplicate)) return;
    out_.actions.push_back(a);
    if (row.makes.has(plan::Value::kNorm)) out_.actions.back().axes.push_back(kShardAxis);
    if (row.makes.has(plan::Value::kUpdated)) order_.after_update();
  }
  std::vector<Action> take() { return std::move(out_.actions); }

 private:
  ShardingOrder::Call& call(int s, int micro_batch) {
    return calls_[static_cast<std::size_t>(micro_batch)][static_cast<std::size_t>(s)];
  }

  void compute(const Action& a, int s) {
    out_.actions.push_back(a);
    out_.actions.back().range = {s, s};
  }

  void forward(const Action& a, int s) {
    order_.before_forward(s);
    compute(a, s);
    // no gradient reaches what lies before the first trainable parameter
    reached_ = (reached_ && s > 0) || order_.trains(s);
    call(s, a.micro_batch) = order_.after_forward(s, reached_);
  }

  void backward(const Action& a, int s) {
    const int last = static_cast<int>(out_.model.segments.size()) - 1;
    if (s == last) order_.begin_pass(/*reduces=*/a.micro_batch + 1 == out_.micro_batches);
    if (call(s, a.micro_batch) != nullptr) order_.before_backward(call(s, a.micro_batch));
    compute(a, s);
    if (s == 0) order_.end_pass();
  }

  plan::StepPlan out_;
  std::vector<std::vector<ShardingOrder::Call>> calls_;  // by micro-batch and segment
  ShardingOrder order_;
  bool reached_ = false;
};

Result<plan::StepPlan> shard(const plan::StepPlan& in, const Sharding& how) {
  if (how.stage < 1 || how.stage > 3) {
    return invalid_argument("sharded: stage " + std::to_string(how.stage) + "; give 1, 2 or 3");
  }
  if (how.ranks < 1) {
    return invalid_argument("sharded: " + std::to_string(how.ranks) + " ranks; give at least 1");
  }
  if (how.prefetch < 0) {
    return invalid_argument("sharded: prefetch " + std::to_string(how.prefetch) +
                            "; give at least 0");
  }
  if (longest_delay(in) > 0) {
    return invalid_argument(
        "sharded: in a pipeline whose steps overlap each stage updates by itself, and keeps whole "
        "older parameters; use a schedule with a flush, such as 1f1b, or 'ddp'");
  }
  if (in.mesh.find(kShardAxis) >= 0) {
    return Status(Code::kBadPlan, "sharded: the mesh already has an axis 'shard'; apply it once");
  }
  plan::StepPlan out = in;
  if (in.mesh.find(plan::kStageAxis) >= 0) {
    out.actions = shard_stages(how, in);
  } else {
    Sharder sharder(how, in);
    for (const Action& a : in.actions) sharder.add(a);
    out.actions = sharder.take();
  }
  out.strategy += "+sharded" + std::to_string(how.stage);
  // Innermost, but for ranks that compute samples together, which are nearest to each other.
  const auto outside = std::ranges::find_if(out.mesh.axes, [](const plan::Axis& axis) {
    return axis.name == plan::kStageAxis || axis.name == plan::kContextAxis ||
           axis.name == plan::kTensorAxis;
  });
  const auto at = outside - out.mesh.axes.begin();
  out.mesh.axes.insert(outside, {kShardAxis, how.ranks});
  out.parameters.insert(out.parameters.begin() + at, plan::Placement::kShard);
  // nothing is gained by cutting what is never updated, unless it is dropped after use
  out.frozen.insert(out.frozen.begin() + at,
                    how.stage == 3 ? plan::Placement::kShard : plan::Placement::kReplicate);
  out.optimizer_state.insert(out.optimizer_state.begin() + at, plan::Placement::kShard);
  return out;
}

}  // namespace

Pass sharded(const Sharding& how) {
  return [how](const plan::StepPlan& in) { return shard(in, how); };
}

}  // namespace stormo::parallel
