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
#include <stormo/parallel/sharded.h>

#include <string>
#include <utility>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;

constexpr const char* kAxis = "shard";

class Sharder {
 public:
  Sharder(int stage, const plan::StepPlan& in) : stage_(stage), out_(in) { out_.actions.clear(); }

  void add(const Action& a) {
    switch (a.kind) {
      case ActionKind::kForward:
        for (int s = a.first; s <= a.last; ++s) {
          if (stage_ == 3) collective(ActionKind::kAllGather, s, s);
          out_.actions.push_back({a.kind, s, s, {}});
        }
        return;
      case ActionKind::kBackward:
        for (int s = a.last; s >= a.first; --s) {
          if (stage_ == 3) collective(ActionKind::kAllGather, s, s);
          out_.actions.push_back({a.kind, s, s, {}});
          if (stage_ > 1) collective(ActionKind::kReduceScatter, s, s);
        }
        if (stage_ == 1) collective(ActionKind::kReduceScatter, a.first, a.last);
        return;
      case ActionKind::kUpdate:
        out_.actions.push_back(a);
        if (stage_ < 3) collective(ActionKind::kAllGather, a.first, a.last);
        return;
      default: out_.actions.push_back(a);
    }
  }
  plan::StepPlan take() { return std::move(out_); }

 private:
  void collective(ActionKind kind, int first, int last) {
    out_.actions.push_back({kind, first, last, kAxis});
  }

  int stage_;
  plan::StepPlan out_;
};

Result<plan::StepPlan> shard(const plan::StepPlan& in, int stage, int ranks) {
  if (stage < 1 || stage > 3) {
    return invalid_argument("sharded: stage " + std::to_string(stage) + "; give 1, 2 or 3");
  }
  if (ranks < 1) {
    return invalid_argument("sharded: " + std::to_string(ranks) + " ranks; give at least 1");
  }
  if (in.mesh.find(kAxis) >= 0) {
    return Status(Code::kBadPlan, "sharded: the mesh already has an axis 'shard'; apply it once");
  }
  Sharder sharder(stage, in);
  for (const Action& a : in.actions) sharder.add(a);
  plan::StepPlan out = sharder.take();
  out.strategy += "+sharded" + std::to_string(stage);
  out.mesh.axes.push_back({kAxis, ranks});  // innermost: its ranks are neighbours, on one host
  return out;
}

}  // namespace

Pass sharded(int stage, int ranks) {
  return [=](const plan::StepPlan& in) { return shard(in, stage, ranks); };
}

}  // namespace stormo::parallel
