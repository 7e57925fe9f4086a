// Which neighbours in a plan may change places: those of which neither changes what the other uses.
// Written from what each action does, so that it is no second form of verify().
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/project.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel::test {

/// How an action uses a value. Two actions may change places where both read it, or both add.
enum class Use { kRead, kAdd, kChange };

/// What an action uses, by name.
class Uses {
 public:
  Uses(const plan::StepPlan& plan, const plan::Action& a) : plan_(plan), a_(a) {
    use("all", a.kind == plan::ActionKind::kAgree ? Use::kChange : Use::kRead);
    use(of_batch("batch"), a.kind == plan::ActionKind::kLoad ? Use::kChange : Use::kRead);
    compute();
    exchange();
    scale();
  }
  bool commute_with(const Uses& other) const {
    return std::ranges::all_of(all_, [&](const auto& mine) {
      const auto theirs = other.all_.find(mine.first);
      return theirs == other.all_.end() ||
             (theirs->second == mine.second && mine.second != Use::kChange);
    });
  }

 private:
  void use(const std::string& what, Use how) {
    Use& now = all_.try_emplace(what, how).first->second;
    if (now != how) now = Use::kChange;
  }
  std::string of_batch(const std::string& what) const {
    return what + " of the batch " + std::to_string(a_.delay) + " before";
  }
  /// Of the action's micro-batch.
  std::string named(const std::string& what, int segment) const {
    return of_batch(what + " " + std::to_string(segment) + " of micro-batch " +
                    std::to_string(a_.micro_batch));
  }
  /// Of each parameter in the action's range; of one of segments, those that they read.
  void parameters(const std::string& what, Use how) {
    const bool of_segments = row_of(a_.kind).range == plan::RangeOf::kSegments;
    const std::vector<std::vector<int>> reads = parameters_read(plan_.model);
    for (int i = a_.range.first; i <= a_.range.last; ++i) {
      if (!of_segments) {
        use(what + " " + std::to_string(i), how);
        continue;
      }
      for (const int p : reads[static_cast<std::size_t>(i)]) {
        use(what + " " + std::to_string(p), how);
      }
    }
  }
  /// Where a step chooses what it trains, each batch has gradients of its own.
  std::string gradients_over(const std::string& axis) const {
    return (plan_.chosen ? of_batch("gradients") : "gradients") + " over " + axis + " of";
  }
  /// Sums over one axis do not disturb those over another.
  void gradients(Use how, const std::vector<std::string>& over) {
    for (const std::string& axis : over) parameters(gradients_over(axis), how);
  }
  void gradients(Use how) { gradients(how, all_axes()); }
  void all_gradients(Use how) {
    const int last = num_parameters(plan_.model) - 1;
    for (const std::string& axis : all_axes()) {
      for (int p = 0; p <= last; ++p) {
        use(gradients_over(axis) + " " + std::to_string(p), how);
      }
    }
    use("backwards", Use::kRead);
  }
  std::vector<std::string> all_axes() const {
    std::vector<std::string> out = {"no axis"};
    for (const plan::Axis& axis : plan_.mesh.axes) out.push_back(axis.name);
    return out;
  }
  std::vector<std::string> other_axes(const std::string& than) const {
    std::vector<std::string> out = all_axes();
    std::erase(out, than);
    return out;
  }

  void backward() {
    const int last = a_.range.last;
    use(named(is_boundary(plan_.model, last) ? "moved gradient" : "gradient", last + 1),
        Use::kRead);
    use(named("loss", 0), Use::kRead);
    use(named("kept", a_.range.first), Use::kRead);
    for (int s = a_.range.first; s <= last; ++s) use(named("gradient", s), Use::kChange);
  }
  void add_gradients() {
    gradients(Use::kAdd);
    use("backwards", Use::kAdd);
  }

  void compute() {
    using enum plan::ActionKind;
    const int first = a_.range.first, last = a_.range.last;
    switch (a_.kind) {
      case kForward:
        use("chosen", Use::kRead);
        use(named(is_boundary(plan_.model, first - 1) ? "moved output" : "output", first - 1),
            Use::kRead);
        for (int s = first; s <= last; ++s) use(named("output", s), Use::kChange);
        break;
      case kLoss:
        use(named("output", static_cast<int>(plan_.model.segments.size()) - 1), Use::kRead);
        use(named("loss", 0), Use::kChange);
        break;
      case kRecompute:
        use(named("loss", 0), Use::kRead);
        use(named("kept", first), Use::kChange);
        break;
      case kBackward:
        backward();
        add_gradients();
        break;
      case kBackwardInput:
        backward();
        use(named("second part", first), Use::kChange);
        break;
      case kBackwardWeight:
        use(named("second part", first), Use::kRead);
        add_gradients();
        break;
      case kMoveActivation:
        use(named("output", first), Use::kRead);
        use(named("moved output", first), Use::kChange);
        break;
      case kMoveGradient:
        use(named("gradient", last), Use::kRead);
        use(named("moved gradient", last), Use::kChange);
        break;
      default: return;
    }
    if (!row_of(a_.kind).moves() && a_.kind != kLoss) parameters("values of", Use::kRead);
  }

  void exchange() {
    using enum plan::ActionKind;
    const bool weighted =
        (a_.asynchronous && !plan_.chosen) || plan_.mesh.find(plan::kWorkerAxis) >= 0;
    switch (a_.kind) {
      case kChoose: return use("chosen", Use::kChange);
      case kSumWeights: return use("weights", Use::kChange);
      case kAllGather:
      case kReshard:
      case kShareParameters:
      case kPull:
      case kAverage:
      case kAverageParameters:
      case kOuterUpdate: return parameters("values of", Use::kChange);
      case kAverageState:  // those of several slots have no order
        parameters("slot " + std::to_string(a_.slot) + " of", Use::kChange);
        return parameters("state of", Use::kAdd);
      case kMix:  // an update waits for one that is asynchronous
        return parameters("values of", a_.asynchronous ? Use::kRead : Use::kChange);
      case kTournament: return parameters("values of", Use::kChange);
      case kExchangeModels: return parameters("values of", Use::kRead);
      case kTrack: return gradients(Use::kChange);
      case kElasticAverage: parameters("values of", Use::kChange); return gradients(Use::kRead);
      case kAllReduce:
        if (weighted) use("weights", Use::kRead);
        return gradients(Use::kChange, a_.axes);
      case kReduceScatter:
        use("weights", Use::kRead);
        parameters("terms of", Use::kChange);
        return gradients(Use::kChange, a_.axes);
      case kReleaseGradients: return parameters("terms of", Use::kChange);
      case kShareGradients: return gradients(Use::kChange, a_.axes);
      case kAllReduceTied:
        gradients(Use::kChange, {plan::kStageAxis});
        return gradients(Use::kRead, other_axes(plan::kStageAxis));
      case kAllReduceUnsplit:
        gradients(Use::kChange, {plan::kTensorAxis});
        return gradients(Use::kRead, {"shard", "no axis"});
      case kFindUnused: return all_gradients(Use::kChange);
      default: return;
    }
  }

  void scale() {
    using enum plan::ActionKind;
    switch (a_.kind) {
      case kNorm: all_gradients(Use::kRead); return use("factor", Use::kChange);
      case kUnscale:
      case kClip: return use("factor", Use::kChange);
      case kUpdate:
        use("factor", Use::kRead);
        parameters("state of", Use::kChange);
        // where steps overlap, a batch is computed with the values of its load
        if (longest_delay(plan_) == 0) parameters("values of", Use::kChange);
        return gradients(is_remote(plan_) ? Use::kRead : Use::kChange);
      case kPush:
        use("factor", Use::kRead);
        if (plan_.mesh.find(plan::kWorkerAxis) >= 0) use("weights", Use::kRead);
        return gradients(Use::kChange);
      default: return;
    }
  }

  const plan::StepPlan& plan_;
  const plan::Action& a_;
  std::map<std::string, Use> all_;
};

/// Whether some rank does both actions.
inline bool have_a_rank_in_common(const plan::StepPlan& p, const plan::Action& a,
                                  const plan::Action& b) {
  const plan::Stages stages(p.model);
  for (int s = 0; s < num_stages(p.mesh); ++s) {
    if (stages.concern(a, s) && stages.concern(b, s)) return true;
  }
  return false;
}

/// What verify() says of a plan whose neighbours i and i + 1 have changed places is what their uses
/// say; whether it is refused.
inline bool expect_decided(const plan::StepPlan& p, std::size_t i) {
  plan::StepPlan swapped = p;
  std::swap(swapped.actions[i], swapped.actions[i + 1]);
  const plan::Action &a = p.actions[i], &b = p.actions[i + 1];
  // what two stages do at the same time has no order
  const bool may = !have_a_rank_in_common(p, a, b) || Uses(p, a).commute_with(Uses(p, b));
  const Status said = analysis::verify(swapped);
  EXPECT_EQ(said.ok(), may) << describe(p, i) << " and " << describe(p, i + 1) << " of\n"
                            << to_text(p) << said.message();
  return !said.ok();
}

/// The same of all neighbours in all plans.
inline void expect_every_swap_decided(const std::vector<plan::StepPlan>& plans) {
  int tried = 0, refused = 0;
  for (const plan::StepPlan& p : plans) {
    for (std::size_t i = 0; i + 1 < p.actions.size(); ++i, ++tried) {
      if (p.actions[i] == p.actions[i + 1]) ADD_FAILURE() << describe(p, i) << " is there twice";
      refused += expect_decided(p, i) ? 1 : 0;
      if (::testing::Test::HasFailure()) return;  // one plan is long enough to read
    }
  }
  std::printf("%d swaps: %d refused, as they must be, and %d are other orders of the same step\n",
              tried, refused, tried - refused);
  EXPECT_GT(refused, 0);
}

}  // namespace stormo::parallel::test
