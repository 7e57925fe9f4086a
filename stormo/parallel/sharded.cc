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

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Range;

constexpr const char* kAxis = "shard";

/// Whose parameters a segment reads, and until when each segment's are needed.
struct Uses {
  std::vector<std::vector<int>> of;  ///< by segment: the segments whose parameters it reads
  std::vector<int> last_user;        ///< by segment: the last one that reads its parameters
};

Uses uses_in(const plan::ModelShape& model) {
  std::vector<int> owner;  // by parameter
  Uses uses;
  for (const std::vector<int>& read : parameters_read(model)) {
    const int segment = static_cast<int>(uses.of.size());
    const auto own = model.segments[uses.of.size()].parameters.size();
    owner.resize(owner.size() + own, segment);
    std::vector<int> of;
    for (const int p : read) of.push_back(owner[static_cast<std::size_t>(p)]);
    of.erase(std::unique(of.begin(), of.end()), of.end());
    uses.last_user.push_back(segment);
    for (const int used : of) uses.last_user[static_cast<std::size_t>(used)] = segment;
    uses.of.push_back(std::move(of));
  }
  return uses;
}

class Sharder {
 public:
  Sharder(const Sharding& how, const plan::StepPlan& in)
      : how_(how),
        in_(in),
        out_(in),
        uses_(uses_in(in.model)),
        whole_(in.model.segments.size()),
        trains_(in.model.segments.size()) {
    out_.actions.clear();
    for (std::size_t s = 0; s < trains_.size(); ++s) {
      trains_[s] =
          std::ranges::any_of(in.model.segments[s].parameters, &plan::ParameterShape::trainable);
    }
    while (frozen_ < segments() && !reaches_trainable(frozen_)) ++frozen_;
  }

  void add(const Action& a) {
    switch (a.kind) {
      case ActionKind::kForward:
        for (int s = a.range.first; s <= a.range.last; ++s) forward(s, a.micro_batch);
        return;
      case ActionKind::kBackward:
        for (int s = a.range.last; s >= a.range.first; --s) backward(s, a.micro_batch);
        return;
      case ActionKind::kAllReduce: return;  // of parts, see settle()
      case ActionKind::kNorm:
        find_unused();
        out_.actions.push_back(a);
        out_.actions.back().axes.push_back(kAxis);
        return;
      case ActionKind::kUpdate:
        find_unused();
        out_.actions.push_back(a);
        release_terms();
        return;
      default: out_.actions.push_back(a);
    }
  }
  plan::StepPlan take() { return std::move(out_); }

 private:
  int segments() const { return static_cast<int>(whole_.size()); }
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Range own(int s) const { return parameters_of(in_.model, {s, s}); }
  bool reaches_trainable(int s) const {
    return std::ranges::any_of(uses_.of[at(s)], [this](int used) { return trains_[at(used)]; });
  }
  void push(ActionKind kind, int segment, bool asynchronous) {
    out_.actions.push_back(
        {.kind = kind, .range = own(segment), .axes = {kAxis}, .asynchronous = asynchronous});
  }

  void gather(int s) {
    const bool in_parts = own(s).size() > 0 && (how_.stage == 3 || trains_[at(s)]);
    if (whole_[at(s)] || !in_parts) return;
    whole_[at(s)] = true;
    push(ActionKind::kAllGather, s, how_.prefetch > 0);
  }
  void reshard(int s) {
    if (how_.stage < 3 || !whole_[at(s)]) return;
    whole_[at(s)] = false;
    push(ActionKind::kReshard, s, false);
  }

  void forward(int s, int micro_batch) {
    for (const int used : uses_.of[at(s)]) gather(used);
    for (int next = s + 1; next <= s + how_.prefetch && next < segments(); ++next) gather(next);
    out_.actions.push_back(
        {.kind = ActionKind::kForward, .range = {s, s}, .micro_batch = micro_batch});
    for (const int used : uses_.of[at(s)]) {
      if (uses_.last_user[at(used)] <= s) reshard(used);
    }
  }

  void backward(int s, int micro_batch) {
    const bool last_batch = micro_batch + 1 == in_.micro_batches;
    if (last_batch && !std::exchange(counted_, true)) {
      out_.actions.push_back({.kind = ActionKind::kCount});
    }
    // no gradient reaches what lies before the first trainable parameter
    if (s >= frozen_) {
      for (int next = s; next >= std::max(s - how_.prefetch, frozen_); --next) {
        for (const int used : uses_.of[at(next)]) gather(used);
      }
    }
    out_.actions.push_back(
        {.kind = ActionKind::kBackward, .range = {s, s}, .micro_batch = micro_batch});
    if (last_batch && trains_[at(s)]) {
      push(ActionKind::kReduceScatter, s, how_.prefetch > 0);
      reducing_.push_back(s);
      if (reducing_.size() > static_cast<std::size_t>(how_.prefetch)) settle();
    }
    reshard(s);
    while (last_batch && s == 0 && !reducing_.empty()) settle();
  }

  /// What follows the oldest reduction: its terms go, and its outcome is a term of the replicas'.
  void settle() {
    const int s = reducing_.front();
    reducing_.pop_front();
    if (how_.stage > 1) {
      out_.actions.push_back({.kind = ActionKind::kReleaseGradients, .range = own(s)});
    }
    for (const Action& a : in_.actions) {
      if (a.kind != ActionKind::kAllReduce || a.range.first > own(s).first ||
          a.range.last < own(s).last) {
        continue;
      }
      out_.actions.push_back(
          {.kind = ActionKind::kAllReduce, .range = own(s), .axes = a.axes, .asynchronous = true});
    }
  }

  /// Stage 1 has its part of each gradient among the terms, until it has been used.
  void release_terms() {
    for (int s = 0; s < segments() && how_.stage == 1; ++s) {
      if (!trains_[at(s)]) continue;
      out_.actions.push_back({.kind = ActionKind::kReleaseGradients, .range = own(s)});
    }
  }

  void find_unused() {
    if (std::exchange(unused_found_, true)) return;
    out_.actions.push_back({.kind = ActionKind::kFindUnused});
  }

  Sharding how_;
  const plan::StepPlan& in_;
  plan::StepPlan out_;
  Uses uses_;
  std::vector<bool> whole_;   // by segment: its parameters are gathered, or on their way
  std::vector<bool> trains_;  // by segment: it has trainable parameters
  int frozen_ = 0;            // segments before the first that any gradient reaches
  std::deque<int> reducing_;  // segments, oldest first
  bool counted_ = false, unused_found_ = false;
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
  if (in.mesh.find(kAxis) >= 0) {
    return Status(Code::kBadPlan, "sharded: the mesh already has an axis 'shard'; apply it once");
  }
  Sharder sharder(how, in);
  for (const Action& a : in.actions) sharder.add(a);
  plan::StepPlan out = sharder.take();
  out.strategy += "+sharded" + std::to_string(how.stage);
  out.mesh.axes.push_back({kAxis, how.ranks});  // innermost: its ranks are neighbours, on one host
  out.parameters.push_back(plan::Placement::kShard);
  // nothing is gained by cutting what is never updated, unless it is dropped after use
  out.frozen.push_back(how.stage == 3 ? plan::Placement::kShard : plan::Placement::kReplicate);
  out.optimizer_state.push_back(plan::Placement::kShard);
  return out;
}

}  // namespace

Pass sharded(const Sharding& how) {
  return [how](const plan::StepPlan& in) { return shard(in, how); };
}

}  // namespace stormo::parallel
