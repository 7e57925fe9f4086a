// Pipelines that go on without lost ranks: who computes what, that nothing is lost or done twice,
// and what it costs. Expectations are counted from the assigned actions, not by verify().
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/step/assigned.h>
#include <stormo/analysis/verify/assigned_verify.h>
#include <stormo/base/index.h>
#include <stormo/base/rng.h>
#include <stormo/parallel/computation/commit_before_update.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/pipeline/reroute.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/project.h>

#include "pipeline_cases.h"
#include "tests/long.h"
#include "tests/sanitized.h"

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::AssignedAction;
using plan::AssignedPlan;
using plan::StepPlan;
using test::cases;
using test::name_of;
using test::plan_of;
using Case = test::PipelineCase;

/// Schedules that end each step.
std::vector<Case> flushed(const std::vector<int>& stages, const std::vector<int>& micro_batches) {
  std::vector<Case> out = cases(stages, micro_batches);
  std::erase_if(out, [](const Case& c) { return c.schedule.overlap.has_value(); });
  return out;
}

AssignedPlan without(const StepPlan& p, const std::vector<Rank>& lost) {
  return reroute(p, lost).take_or_throw();
}

/// With all that ranks do together: norms and overflows over all stages, and tied weights.
StepPlan plan_with_all(const Case& c, int replicas) {
  return compose(
             one_device(test::layers(c.shape.stages * c.shape.chunks, /*tied=*/true)),
             micro_batches(c.shape.micro_batches), scale_loss(), clip_gradients(),
             pipeline({.stages = c.shape.stages, .chunks = c.shape.chunks, .schedule = c.schedule}),
             recompute(), mirrored(replicas))
      .take_or_throw();
}

std::string named(const Case& c, const std::vector<Rank>& lost) {
  std::string out = name_of(c) + ", lost";
  for (const Rank r : lost) out += " " + std::to_string(r);
  return out;
}

/// Up to d-1 ranks of each stage, at least one in all.
std::vector<Rank> some_ranks(Rng& rng, int replicas, int stages) {
  std::vector<Rank> out;
  while (out.empty()) {
    for (int s = 0; s < stages; ++s) {
      std::set<int> of_stage;
      const auto most = static_cast<int>(rng.below(static_cast<std::uint64_t>(replicas)));
      for (int i = 0; i < most; ++i) {
        of_stage.insert(static_cast<int>(rng.below(static_cast<std::uint64_t>(replicas))));
      }
      if (std::ssize(of_stage) == replicas) of_stage.erase(of_stage.begin());
      for (const int d : of_stage) out.push_back(d * stages + s);
    }
  }
  return out;
}

/// What is counted of an assigned plan: how often each computation of each replica is there.
void expect_each_once(const AssignedPlan& p, const std::string& name) {
  std::map<std::tuple<ActionKind, int, int, int>, int> times;  // replica, micro-batch, segment
  for (const AssignedAction& a : p.actions) {
    const Action& action = p.plan.actions[a.action];
    for (const Rank r : a.ranks) EXPECT_EQ(std::ranges::count(p.lost, r), 0) << name;
    if (!row_of(action.kind).micro_batch) continue;
    for (int s = action.range.first; s <= action.range.last; ++s) {
      ++times[{action.kind, a.replica, action.micro_batch, s}];
    }
  }
  const int segments = static_cast<int>(p.plan.model.segments.size());
  for (int d = 0; d < num_replicas(p.plan); ++d) {
    for (int m = 0; m < p.plan.micro_batches; ++m) {
      for (int s = 0; s < segments; ++s) {
        const auto count = [&](ActionKind kind) {
          const auto found = times.find({kind, d, m, s});
          return found == times.end() ? 0 : found->second;
        };
        EXPECT_EQ(count(ActionKind::kForward), 1) << name;
        EXPECT_EQ(count(ActionKind::kBackward) + count(ActionKind::kBackwardInput), 1) << name;
        EXPECT_EQ(count(ActionKind::kBackwardInput), count(ActionKind::kBackwardWeight)) << name;
      }
    }
  }
}

/// Before a rank reduces a parameter, its stage has all gradients of it, on the ranks that reduce.
void expect_whole_sums(const AssignedPlan& p, const std::string& name) {
  std::map<int, std::set<std::tuple<Rank, int, int>>> terms;  // segment: rank, replica, micro-batch
  const auto all = static_cast<std::size_t>(num_replicas(p.plan) * p.plan.micro_batches);
  int reductions = 0;
  for (const AssignedAction& a : p.actions) {
    const Action& action = p.plan.actions[a.action];
    if (row_of(action.kind).adds_gradients) {
      for (int s = action.range.first; s <= action.range.last; ++s) {
        terms[s].insert({a.ranks.front(), a.replica, action.micro_batch});
      }
    }
    if (action.kind != ActionKind::kAllReduce) continue;
    ++reductions;
    for (int s = 0; s < static_cast<int>(p.plan.model.segments.size()); ++s) {
      const plan::Range own = parameters_of(p.plan.model, {s, s});
      if (own.first < action.range.first || own.last > action.range.last) continue;
      std::size_t here = 0;
      for (const auto& [rank, d, m] : terms[s]) here += std::ranges::count(a.ranks, rank);
      EXPECT_EQ(here, all) << name << " segment " << s;
    }
  }
  EXPECT_GT(reductions, 0);
}

/// Of how many segments a rank keeps activations at most, counted for each micro-batch.
int most_kept(const AssignedPlan& p, Rank rank) {
  int now = 0, most = 0;
  for (const AssignedAction& a : project(p, rank)) {
    const Action& action = p.plan.actions[a.action];
    if (action.kind == ActionKind::kForward) most = std::max(most, now += action.range.size());
    if (row_of(action.kind).adds_gradients) now -= action.range.size();
  }
  return most;
}

TEST(Reroute, EveryMicroBatchPassesEachStageOnceWhicheverRanksAreLost) {
  Rng rng(1, "lost ranks");
  const std::vector<int> sizes =
      is_long_form() ? std::vector{1, 2, 3, 4, 6, 8, 12, 16} : std::vector{1, 4, 6};
  for (const Case& c : flushed({2, 3, 4}, sizes)) {
    for (const int replicas : {2, 3, 4}) {
      const StepPlan p = plan_of(c, {mirrored(replicas)});
      for (int i = 0; i < (is_long_form() ? 20 : 3); ++i) {
        const std::vector<Rank> lost = some_ranks(rng, replicas, c.shape.stages);
        const std::string name = named(c, lost);
        const AssignedPlan rerouted = without(p, lost);
        const Status ok = analysis::verify(rerouted);
        ASSERT_TRUE(ok.ok()) << name << ": " << ok.message();
        expect_each_once(rerouted, name);
        expect_whole_sums(rerouted, name);
      }
    }
  }
}

TEST(Reroute, NoRankKeepsMoreThanTheFullestOfThePlan) {
  const std::vector<int> sizes = kSanitized ? std::vector{7} : std::vector{4, 7, 8};
  for (const Case& c : flushed({2, 4}, sizes)) {
    const StepPlan p = plan_of(c, {mirrored(3)});
    int before = 0;
    const AssignedPlan all = plan::assign(p).take_or_throw();
    for (Rank r = 0; r < p.mesh.size(); ++r) before = std::max(before, most_kept(all, r));
    for (Rank lost = 0; lost < p.mesh.size(); ++lost) {
      for (const int more : {0, 1}) {
        const AssignedPlan rerouted = reroute(p, {lost}, more).take_or_throw();
        ASSERT_TRUE(analysis::verify(rerouted).ok()) << named(c, {lost});
        for (Rank r = 0; r < p.mesh.size(); ++r) {
          EXPECT_LE(most_kept(rerouted, r), before + more * c.shape.chunks) << named(c, {lost});
        }
      }
    }
  }
}

TEST(Reroute, IdleRanksComputeNothingAndGetTheSums) {
  for (const Case& c : flushed({3}, {4})) {
    const StepPlan p = plan_of(c, {mirrored(3), commit_before_update()});
    for (const std::vector<Rank>& lost : {std::vector<Rank>{}, {4}}) {
      const std::string name = named(c, lost);
      const std::vector<Rank> idle = {0, 5};
      const AssignedPlan rerouted = reroute(p, lost, 0, idle).take_or_throw();
      const Status ok = analysis::verify(rerouted);
      ASSERT_TRUE(ok.ok()) << name << ": " << ok.message();
      expect_each_once(rerouted, name);
      expect_whole_sums(rerouted, name);
      for (const Rank r : idle) {
        int reductions = 0;
        for (const AssignedAction& a : project(rerouted, r)) {
          const Action& action = p.actions[a.action];
          EXPECT_FALSE(is_of_replica(action)) << name;
          reductions += action.kind == ActionKind::kAllReduce ? 1 : 0;
        }
        EXPECT_GT(reductions, 0) << name;
      }
    }
  }
  const StepPlan p = plan_of({one_forward_one_backward(), {2, 2, 1}}, {mirrored(2)});
  EXPECT_TRUE(reroute(p, {1}).ok());
  EXPECT_FALSE(reroute(p, {1}, 0, {3}).ok()) << "nobody computes the second stage";
}

TEST(Reroute, PeersShareTheWorkOfALostRankEvenly) {
  const Case c{one_forward_one_backward(), {3, 8, 1}};
  const AssignedPlan p = without(plan_of(c, {mirrored(4)}), {4, 1});
  std::map<Rank, int> forwards;
  for (const AssignedAction& a : p.actions) {
    if (p.plan.actions[a.action].kind == ActionKind::kForward) ++forwards[a.ranks.front()];
  }
  // of stage 1 ranks 7 and 10 are left for 32 micro-batches
  EXPECT_EQ(
      forwards,
      (std::map<Rank, int>{
          {0, 8}, {3, 8}, {6, 8}, {9, 8}, {7, 16}, {10, 16}, {2, 8}, {5, 8}, {8, 8}, {11, 8}}));
}

/// Times for which a forward takes 1 and a backward 2 of each segment, and an update nothing.
analysis::StepTimes unit_times(const StepPlan& p) {
  const std::size_t n = p.model.segments.size();
  const analysis::ComputeTimes times{.forward = std::vector<double>(n, 1),
                                     .backward = std::vector<double>(n, 2)};
  return {.compute = analysis::compute_times(p, times),
          .collective = [](auto&, auto&) { return 0.0; }};
}

double seconds_of(const AssignedPlan& p) {
  return analysis::simulate(p, {p.plan.mesh.size()}, {}, unit_times(p.plan))
      .take_or_throw()
      .seconds;
}

TEST(Reroute, WithNobodyLostEachRankDoesItsOwnPartInTheSameTimeAndMemory) {
  const analysis::ComputeTimes computes{.forward = std::vector<double>(12, 1e-3),
                                        .backward = std::vector<double>(12, 3e-3),
                                        .load = 1e-4,
                                        .loss = 1e-5,
                                        .norm = 2e-5,
                                        .update = 4e-4};
  for (const Case& c : flushed({2, 4}, {4, 8})) {
    for (const bool tied : {false, true}) {
      const StepPlan p = tied ? plan_with_all(c, 3) : plan_of(c, {mirrored(3)});
      const AssignedPlan same = without(p, {});
      ASSERT_TRUE(analysis::verify(same).ok()) << name_of(c);
      const std::vector<int> hosts = {p.mesh.size() / 2, p.mesh.size() - p.mesh.size() / 2};
      const analysis::StepSizes sizes{
          .agreed_numbers = 3, .outputs = std::vector<std::int64_t>(12, 4000), .samples = 2};
      const analysis::StepTimes times{
          .compute = analysis::compute_times(p, computes),
          .collective =
              [](const std::vector<int>& ranks, const analysis::Collective& each) {
                return 1e-4 * static_cast<double>(ranks.size()) +
                       1e-7 * static_cast<double>(each.bytes());
              },
          .stages_between_hosts = {.latency_s = 1e-4, .seconds_per_byte = 1e-8}};
      const auto expected = analysis::simulate(p, hosts, sizes, times).take_or_throw();
      const auto found = analysis::simulate(same, hosts, sizes, times).take_or_throw();
      EXPECT_EQ(found.finish, expected.finish) << name_of(c);
      EXPECT_EQ(found.compute, expected.compute) << name_of(c);
      EXPECT_EQ(found.timeline.size(), expected.timeline.size()) << name_of(c);
      const analysis::MemorySizes memory{.optimizer_numbers = 2,
                                         .activations = std::vector<std::int64_t>(12, 5000),
                                         .outputs = std::vector<std::int64_t>(12, 4000)};
      EXPECT_EQ(analysis::memory(same, memory).peak, analysis::memory(p, memory).peak);
      const analysis::TrafficOf traffic = [](const std::vector<int>& ranks,
                                             const analysis::Collective& each) {
        std::vector<analysis::Traffic> sent;
        for (const int here : ranks) {
          sent.insert(sent.end(), at(here), {.between_hosts = each.bytes(), .in_host = here});
        }
        return sent;
      };
      EXPECT_EQ(analysis::traffic(same, hosts, sizes, traffic).take_or_throw(),
                analysis::cost(p, hosts, sizes, traffic).take_or_throw().ranks);
    }
  }
}

TEST(Reroute, AStepTakesAtLeastTheWorkOfTheFullestStage) {
  for (const Case& c : flushed({2, 4}, {8, 16})) {
    const StepPlan p = plan_of(c, {mirrored(4)});
    const double all = seconds_of(without(p, {}));
    for (int stage = 0; stage < c.shape.stages; ++stage) {
      const double seconds = seconds_of(without(p, {stage}));
      // of 4 m micro-batches on 3 ranks, each of which takes 3 for each chunk
      const double work = c.shape.chunks * 4.0 * c.shape.micro_batches;
      EXPECT_GE(seconds, std::max(all, work)) << named(c, {stage});
      // and all of them would wait as long as they did
      EXPECT_LE(seconds, 1.25 * all * 4 / 3) << named(c, {stage});
    }
  }
}

/// Then a rank has more to do while it would wait.
TEST(Reroute, WithRoomForMoreMicroBatchesAStepIsAlmostTheIdeal) {
  const StepPlan p = plan_of({one_forward_one_backward(), {4, 8, 1}}, {mirrored(4)});
  const double all = seconds_of(without(p, {}));
  const std::vector<Rank> one_each = {0, 5, 10, 15};
  EXPECT_GT(seconds_of(without(p, one_each)), all * 4 / 3 * 1.05);
  EXPECT_LE(seconds_of(reroute(p, one_each, 1).take_or_throw()), all * 4 / 3 * 1.02);
  EXPECT_LE(seconds_of(reroute(p, {5}, 32).take_or_throw()), all * 16 / 15 * 1.06);
}

/// Where each stage has lost one rank of four, and each of them in another pipeline, whole
/// pipelines would leave nobody; of two stages half of the ranks.
TEST(Reroute, LossesInDifferentStagesDoNotAddUp) {
  for (const Case& c : flushed({2, 4}, {8, 16})) {
    const int stages = c.shape.stages;
    const StepPlan p = plan_of(c, {mirrored(4)});
    std::vector<Rank> one_each, two_pipelines;
    for (int s = 0; s < stages; ++s) {
      one_each.push_back(s * stages + s);
      two_pipelines.push_back(s);
      two_pipelines.push_back(stages + s);
    }
    const double all = seconds_of(without(p, {}));
    EXPECT_LE(seconds_of(without(p, one_each)), 1.35 * all * 4 / 3) << named(c, one_each);
    EXPECT_LE(seconds_of(without(p, {0, stages + 1})), seconds_of(without(p, two_pipelines)))
        << name_of(c);
  }
}

Status verified_without(const AssignedPlan& p, std::size_t entry) {
  AssignedPlan broken = p;
  broken.actions.erase(broken.actions.begin() + static_cast<std::ptrdiff_t>(entry));
  return analysis::verify(broken);
}

Status verified_twice(const AssignedPlan& p, std::size_t entry, std::size_t again) {
  AssignedPlan broken = p;
  broken.actions.insert(broken.actions.begin() + static_cast<std::ptrdiff_t>(again),
                        p.actions[entry]);
  return analysis::verify(broken);
}

/// One of each kind of plan that mutations break.
std::vector<AssignedPlan> to_break() {
  return {without(plan_with_all({one_forward_one_backward(), {3, 3, 1}}, 3), {1, 4, 5}),
          without(plan_of({interleaved(), {2, 2, 2}}, {mirrored(2)}), {1}),
          without(plan_of({zero_bubble_v(), {2, 3, 2}}, {mirrored(2)}), {0})};
}

std::string described(const AssignedPlan& p, std::size_t entry) {
  return std::to_string(entry) + " " + plan::describe(p.plan, p.actions[entry].action) +
         ", replica " + std::to_string(p.actions[entry].replica);
}

TEST(Reroute, VerifyFindsWhatIsLostOrDoneTwice) {
  for (const AssignedPlan& p : to_break()) {
    ASSERT_TRUE(analysis::verify(p).ok());
    for (std::size_t i = 0; i < p.actions.size(); ++i) {
      EXPECT_EQ(verified_without(p, i).code(), Code::kBadPlan) << described(p, i);
      for (const std::size_t again : {i, i + 1, p.actions.size()}) {
        EXPECT_EQ(verified_twice(p, i, again).code(), Code::kBadPlan) << described(p, i);
      }
    }
  }
}

TEST(Reroute, VerifyFindsAnActionOfAnotherReplicaOrOnAnotherRank) {
  for (const AssignedPlan& p : to_break()) {
    for (std::size_t i = 0; i < p.actions.size(); ++i) {
      const bool of_replica = is_of_replica(p.plan.actions[p.actions[i].action]);
      AssignedPlan other = p;
      for (int d = 0; d < num_replicas(p.plan); ++d) {
        other.actions[i].replica = d;
        if (d == p.actions[i].replica || !of_replica) continue;
        EXPECT_FALSE(analysis::verify(other).ok()) << described(p, i) << " of " << d;
      }
      for (std::size_t which = 0; which < p.actions[i].ranks.size(); ++which) {
        other = p;
        for (Rank r = 0; r < p.plan.mesh.size(); ++r) {
          other.actions[i].ranks[which] = r;
          if (r == p.actions[i].ranks[which]) continue;
          EXPECT_FALSE(analysis::verify(other).ok()) << described(p, i) << " on " << r;
        }
      }
    }
  }
}

TEST(Reroute, VerifyFindsAMicroBatchThatOnlyItsBackwardMovesToAnotherPeer) {
  // with two peers left, the whole backward of one micro-batch where its forward was not
  const AssignedPlan p = without(plan_of({gpipe(), {2, 4, 1}}, {mirrored(3)}), {1});
  const auto on = [&](ActionKind kind, Rank rank, Rank instead) {
    AssignedPlan out = p;
    for (AssignedAction& a : out.actions) {
      const Action& action = p.plan.actions[a.action];
      if (a.replica == 0 && action.micro_batch == 0 && action.kind == kind) {
        std::ranges::replace(a.ranks, rank, instead);
      }
    }
    return out;
  };
  const auto taken = std::ranges::find_if(p.actions, [&](const AssignedAction& a) {
    const Action& action = p.plan.actions[a.action];
    return a.replica == 0 && action.micro_batch == 0 && action.range == plan::Range{1, 1} &&
           action.kind == ActionKind::kForward;
  });
  const Rank peer = taken->ranks.front(), other = peer == 3 ? 5 : 3;
  AssignedPlan broken = on(ActionKind::kBackward, peer, other);
  EXPECT_NE(broken, p);
  EXPECT_FALSE(analysis::verify(broken).ok());
  broken = on(ActionKind::kMoveActivation, peer, other);
  EXPECT_NE(broken, p);
  EXPECT_FALSE(analysis::verify(broken).ok());
}

TEST(Reroute, VerifyFindsAReductionThatIsTooEarlyOrLacksARank) {
  const AssignedPlan p =
      without(plan_of({one_forward_one_backward(), {2, 4, 1}}, {mirrored(4)}), {3});
  int reductions = 0;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    if (p.plan.actions[p.actions[i].action].kind != ActionKind::kAllReduce) continue;
    ++reductions;
    AssignedPlan broken = p;
    std::size_t last = i;  // backward of this stage before it
    while (!row_of(p.plan.actions[p.actions[last].action].kind).adds_gradients ||
           stage_of(p.plan.mesh, p.actions[last].ranks.front()) !=
               stage_of(p.plan.mesh, p.actions[i].ranks.front())) {
      --last;
    }
    std::rotate(broken.actions.begin() + static_cast<std::ptrdiff_t>(last),
                broken.actions.begin() + static_cast<std::ptrdiff_t>(i),
                broken.actions.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    EXPECT_FALSE(analysis::verify(broken).ok());
    broken = p;
    broken.actions[i].ranks.pop_back();
    EXPECT_FALSE(analysis::verify(broken).ok());
  }
  EXPECT_EQ(reductions, 2);
}

std::string refusal(const StepPlan& p, const std::vector<Rank>& lost) {
  const auto rerouted = reroute(p, lost);
  return rerouted.ok() ? "accepted" : std::string(rerouted.status().message());
}

TEST(Reroute, SaysWhyPeersCannotDoTheWork) {
  const Case c{one_forward_one_backward(), {2, 4, 1}};
  const StepPlan p = plan_of(c, {mirrored(2)});
  EXPECT_EQ(refusal(p, {1, 3}),
            "stage 1 has lost all of its 2 ranks: nobody has its parameters; go on from a "
            "checkpoint");
  EXPECT_EQ(refusal(p, {4}), "lost rank 4: the plan has ranks 0 to 3");
  EXPECT_EQ(refusal(p, {1, 1}), "lost rank 1 is named twice");
  EXPECT_EQ(refusal(plan_of(c), {1}),
            "peers of a lost rank cannot do its work: there is one pipeline; start more ranks");
  EXPECT_EQ(refusal(compose(one_device(test::layers(2)), mirrored(2)).take_or_throw(), {1}),
            "peers of a lost rank cannot do its work: the plan has no pipeline; replicas of one "
            "rank are ranks of elastic training");
  EXPECT_EQ(refusal(plan_of({pipedream(), {2, 4, 1}}, {mirrored(2)}), {1}),
            "peers of a lost rank cannot do its work: steps overlap; use a schedule that ends "
            "each step, such as 1f1b");
  EXPECT_EQ(refusal(plan_of(c, {sharded({.stage = 1, .ranks = 2})}), {1}),
            "peers of a lost rank cannot do its work: state of the model is shard over 'shard', "
            "so that peers do not have what is lost with a rank; use strategy.kind=ddp with "
            "strategy.parameters=replicated");
}

}  // namespace
}  // namespace stormo::parallel
