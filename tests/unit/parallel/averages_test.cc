// Averages of parameters as passes: by the ranks that have the same part, and by servers.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/choose.h>
#include <stormo/parallel/replicas/local_averages.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/state_periods.h>
#include <stormo/parallel/servers/elastic_averaging.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/strategy/strategy.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;
using test::all_actions;

/// Segments with a weight and a bias each.
plan::ModelShape shape(int segments) {
  plan::ModelShape out;
  for (int i = 0; i < segments; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back(
        {.name = name, .parameters = {{name + ".weight", 100}, {name + ".bias", 10}}});
  }
  return out;
}

TEST(Choose, RefusesWhatItCannotRewrite) {
  const auto with = [](const Pass& before, int depth, int every) {
    return compose(one_device(shape(1)), before, choose(depth, every)).status().message();
  };
  EXPECT_EQ(with(mirrored(2), 0, 1), "");
  EXPECT_THAT(with(mirrored(2), -1, 1), ::testing::HasSubstr("choose: -1 steps under way"));
  EXPECT_THAT(with(mirrored(2), 0, 0), ::testing::HasSubstr("agree every 0"));
  EXPECT_THAT(with(scale_loss(), 0, 1), ::testing::HasSubstr("leave out float16 and clip_norm"));
  EXPECT_THAT(with(choose(0, 1), 0, 1), ::testing::HasSubstr("chooses a second time"));
  EXPECT_THAT(with(parameter_server(2), 0, 1), ::testing::HasSubstr("lacks load, update or agree"));
}

TEST(ParameterAveraging, AveragesBeforeRanksAgree) {
  const auto p = compose(one_device(shape(2)), clip_gradients(), parameter_averaging(3, 8));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 3}}}));
  EXPECT_EQ(p->parameters, std::vector{plan::Placement::kDiverged});
  EXPECT_EQ(p->optimizer_state, std::vector{plan::Placement::kDiverged});
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "norm", "clip",
                                     "update 0-3", "average 0-3 over dp every 8", "agree every 8"));
}

// Each part has an average over the replicas, and nothing else goes from one replica to another.
TEST(ParameterAveraging, AveragesThePartsOfReplicasThatAreCut) {
  const auto p = plan_for({.kind = Strategy::Kind::kParameterAveraging, .period = 8, .pipeline = 2},
                          shape(2), {.ranks_per_host = {6}}, {.micro_batches = 2, .clip = true});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  using enum plan::Placement;
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 3}, {"pp", 2}}}));
  EXPECT_EQ(p->parameters, (std::vector{kDiverged, kStaged}));
  EXPECT_EQ(p->optimizer_state, (std::vector{kDiverged, kStaged}));
  EXPECT_EQ(p->frozen, (std::vector{kReplicate, kStaged}));
  const std::vector<std::string> all = all_actions(*p);
  ASSERT_GT(all.size(), 5u);
  EXPECT_THAT(std::vector(all.end() - 5, all.end()),
              ::testing::ElementsAre("norm over pp", "clip", "update 0-3",
                                     "average 0-3 over dp every 8", "agree every 8"));
  EXPECT_EQ(std::ranges::count(p->actions, ActionKind::kAllReduce, &plan::Action::kind), 0);
}

TEST(ParameterAveraging, RefusesWhatItCannotRewrite) {
  EXPECT_EQ(parameter_averaging(2, 0)(one_device(shape(1))).status().message(),
            "parameter_averaging: 2 ranks, period 0; give at least 1 rank, and a period of 1 to "
            "1048576 steps");
  EXPECT_EQ(compose(one_device(shape(1)), mirrored(2), parameter_averaging(2, 1)).status().code(),
            Code::kBadPlan);
  EXPECT_EQ(
      compose(one_device(shape(1)), parameter_server(2), parameter_averaging(2, 1)).status().code(),
      Code::kBadPlan);
  EXPECT_EQ(compose(one_device(shape(2)), micro_batches(2), pipeline({.schedule = pipedream()}),
                    parameter_averaging(2, 1))
                .status()
                .message(),
            "after one_device+micro_batches2+pipeline2_pipedream: parameter_averaging: steps "
            "overlap, so no step ends with all of its updates; use a schedule whose steps do not, "
            "such as '1f1b'");
}

TEST(StatePeriods, EachSlotHasAnAverageOfItsOwn) {
  const auto p = compose(one_device(shape(2)), parameter_averaging(3, 8), state_periods({24, 48}),
                         outer_update());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+state_periods+outer_update");
  EXPECT_THAT(
      all_actions(*p),
      ::testing::ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "update 0-3",
                             "average_parameters 0-3 over dp every 8", "outer_update 0-3 every 8",
                             "average_state 0-3 slot 0 over dp every 24",
                             "average_state 0-3 slot 1 over dp every 48", "agree every 8"));
  EXPECT_TRUE(averages_slots(*p));
  EXPECT_EQ(plan::parse_step_plan(to_text(*p)).take_or_throw(), *p);
  const Strategy chosen{.kind = Strategy::Kind::kParameterAveraging,
                        .period = 8,
                        .outer = {.kind = OuterOptimizer::Kind::kNesterov},
                        .state_periods = {24, 48}};
  EXPECT_EQ(plan_for(chosen, shape(2), {.ranks_per_host = {3}}).take_or_throw(), *p);
}

// Those of a worker's ranks are equal, and are averaged, too.
TEST(StatePeriods, AreOfAllRanksOfWorkers) {
  const StepPlan p = plan_for({.kind = Strategy::Kind::kParameterAveraging,
                               .worker_ranks = 2,
                               .period = 2,
                               .state_periods = {4}},
                              shape(1), {.ranks_per_host = {6}})
                         .take_or_throw();
  EXPECT_THAT(all_actions(p),
              ::testing::IsSupersetOf({"average_parameters 0-1 over dp,worker every 2",
                                       "average_state 0-1 slot 0 over dp,worker every 4"}));
}

TEST(StatePeriods, RefuseAllThatIsWrongAtOnce) {
  const auto refused = [](Strategy s) {
    s.kind = Strategy::Kind::kParameterAveraging;
    return check_strategy(s, {.ranks_per_host = {2}}).message();
  };
  EXPECT_EQ(refused({.period = 8, .state_periods = {8, 24}}), "");
  EXPECT_EQ(refused({.period = 8,
                     .average_state = Strategy::AverageState::kNo,
                     .state_periods = {12, 4, 16}}),
            "strategy 'parameter_averaging' averages a slot of the optimizer in some of the steps "
            "in which it averages parameters: in state_periods give multiples of period 8, up to "
            "1048576, not 12, 4; has no periods of state that it does not average: leave out "
            "state_periods, or average_state");
  EXPECT_EQ(refused({.period = 8,
                     .outer = {.kind = OuterOptimizer::Kind::kNesterov},
                     .streaming = {.fragments = 2},
                     .state_periods = {8}}),
            "strategy 'parameter_averaging' averages the optimizer's state with all parameters at "
            "once, as it is: leave out average_state and state_periods, or fragments, delay and "
            "compression");
  EXPECT_EQ(
      compose(one_device(shape(1)), mirrored(2), state_periods({8})).status().message(),
      "after one_device+mirrored: state_periods: this plan averages no state of the optimizer "
      "on its ranks; apply it after parameter_averaging with state");
  EXPECT_EQ(
      compose(one_device(shape(1)), parameter_averaging(2, 3), state_periods({4})).status().code(),
      Code::kInvalidArgument);
}

TEST(LocalAverages, AreOfTheRanksOfAHostAndThenOfAll) {
  const auto p = compose(one_device(shape(1)), parameter_averaging(6, 8), local_averages(3, 2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 2}, {"host", 3}}}));
  EXPECT_EQ(p->parameters, (std::vector(2, plan::Placement::kDiverged)));
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "forward 0-0", "loss", "backward 0-0", "update 0-1",
                                     "average 0-1 over host every 2",
                                     "average 0-1 over dp,host every 8", "agree every 8"));
  EXPECT_EQ(plan::parse_step_plan(to_text(*p)).take_or_throw(), *p);
}

TEST(LocalAverages, AreLeftOutWhereTheyChangeNothing) {
  const auto actions = [](const std::vector<int>& hosts, int local_period) {
    const StepPlan p = plan_for({.kind = Strategy::Kind::kParameterAveraging,
                                 .period = 8,
                                 .local_period = local_period},
                                shape(1), {.ranks_per_host = hosts})
                           .take_or_throw();
    std::string out;
    for (const plan::Action& a : p.actions) {
      if (row_of(a.kind).averages()) out += to_text(a) + "; ";
    }
    return out;
  };
  EXPECT_EQ(actions({2, 2}, 4),
            "average 0-1 over host every 4; average 0-1 over dp,host every 8; ");
  EXPECT_EQ(actions({2, 2}, 8), "average 0-1 over dp every 8; ") << "in the same steps";
  EXPECT_EQ(actions({1, 1}, 4), "average 0-1 over dp every 8; ") << "a host has one rank";
  EXPECT_EQ(actions({4}, 4), "average 0-1 over dp every 4; ") << "a host has all ranks";
}

TEST(LocalAverages, RefuseAllThatIsWrongAtOnce) {
  const auto refused = [](Strategy s, const std::vector<int>& hosts) {
    s.kind = Strategy::Kind::kParameterAveraging;
    return check_strategy(s, {.ranks_per_host = hosts}).message();
  };
  EXPECT_EQ(refused({.period = 8, .local_period = 2}, {2, 2}), "");
  EXPECT_EQ(refused({.period = 8, .local_period = 3, .state_periods = {8}}, {2, 1}),
            "strategy 'parameter_averaging' averages all ranks in some of the steps in which those "
            "of a host average: give a local_period that divides period 8, not 3; averages the "
            "ranks of a host by themselves, as many on each: leave out local_period, or start as "
            "many on one host as on the others; averages the ranks of a host where each is a "
            "replica, and takes the averages as they are: leave out local_period, or outer, "
            "state_periods, worker_ranks, pipeline and tensor");
  EXPECT_EQ(compose(one_device(shape(1)), mirrored(2), local_averages(2, 1)).status().code(),
            Code::kBadPlan);
  EXPECT_EQ(
      compose(one_device(shape(1)), parameter_averaging(4, 8), local_averages(3, 2))
          .status()
          .message(),
      "after one_device+parameter_averaging: local_averages: 3 ranks of a host, period 2; of 4 "
      "ranks and an average in every 8 steps give divisors");
}

TEST(OuterUpdate, FollowsTheAverageOfParameters) {
  const auto p =
      compose(one_device(shape(2)), parameter_averaging(3, 8, /*state=*/false), outer_update());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+outer_update");
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "update 0-3",
                                     "average_parameters 0-3 over dp every 8",
                                     "outer_update 0-3 every 8", "agree every 8"));
  EXPECT_EQ(plan::parse_step_plan(to_text(*p)).take_or_throw(), *p);
  const auto with_state = compose(one_device(shape(2)), parameter_averaging(3, 8), outer_update());
  EXPECT_NE(hash(*p), hash(*with_state));
}

TEST(OuterUpdate, IsChosenByTheStrategyWhichThenKeepsTheStateOfEachRank) {
  using State = Strategy::AverageState;
  const auto actions = [](const OuterOptimizer& outer, State state) {
    const StepPlan p =
        plan_for(
            {.kind = Strategy::Kind::kParameterAveraging, .outer = outer, .average_state = state},
            shape(1), {.ranks_per_host = {2}})
            .take_or_throw();
    std::string out;
    for (const plan::Action& a : p.actions) {
      if (row_of(a.kind).averages() || row_of(a.kind).outer_updates()) {
        out += std::string(to_string(a.kind)) + " ";
      }
    }
    return out;
  };
  const OuterOptimizer nesterov{.kind = OuterOptimizer::Kind::kNesterov};
  EXPECT_EQ(actions({}, State::kAuto), "average ");
  EXPECT_EQ(actions({}, State::kNo), "average_parameters ");
  EXPECT_EQ(actions(nesterov, State::kAuto), "average_parameters outer_update ");
  EXPECT_EQ(actions(nesterov, State::kYes), "average outer_update ");
}

TEST(OuterUpdate, NumbersThatAreLeftOutAreThoseOfTheRule) {
  using Kind = OuterOptimizer::Kind;
  EXPECT_EQ(with_defaults({.kind = Kind::kNesterov}), (OuterOptimizer{Kind::kNesterov, 0.7, 0.9}));
  EXPECT_EQ(with_defaults({.kind = Kind::kSlowMo}), (OuterOptimizer{Kind::kSlowMo, 1, 0.5}));
  EXPECT_EQ(with_defaults({Kind::kSlowMo, 0.3, 0}), (OuterOptimizer{Kind::kSlowMo, 0.3, 0}));
}

TEST(OuterUpdate, RefusesAllThatIsWrongAtOnce) {
  const auto refused = [](const OuterOptimizer& outer) {
    return check_strategy({.kind = Strategy::Kind::kParameterAveraging, .outer = outer},
                          {.ranks_per_host = {2}})
        .message();
  };
  using Kind = OuterOptimizer::Kind;
  EXPECT_EQ(refused({.kind = Kind::kNesterov}), "");
  EXPECT_EQ(refused({.momentum = 0.5}),
            "strategy 'parameter_averaging' takes averages as they are: leave out outer_lr and "
            "outer_momentum, or choose outer=nesterov or slowmo");
  EXPECT_EQ(refused({Kind::kNesterov, 0, 1.5}),
            "strategy 'parameter_averaging' has an outer_lr above 0, not 0: leave it out for the "
            "usual one; has an outer_momentum of at least 0 and below 1, not 1.5: leave it out for "
            "the usual one");
  EXPECT_EQ(compose(one_device(shape(1)), mirrored(2), outer_update()).status().message(),
            "after one_device+mirrored: outer_update: replicas of this plan do not diverge; apply "
            "it after parameter_averaging");
}

TEST(ParameterServer, AveragesWhatWorkersTrainByThemselves) {
  for (const int period : {1, 8}) {
    const auto p =
        compose(one_device(shape(2)), clip_gradients(),
                parameter_server(3, {.fetch = period, .push = period, .averages = true}));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_TRUE(averages_on_servers(*p) && has_worker_copies(*p) && is_remote(*p));
    const std::string every = period == 1 ? "" : " every 8";
    EXPECT_THAT(all_actions(*p),
                ::testing::ElementsAre("load", "pull 0-3 over dp" + every, "forward 0-1", "loss",
                                       "backward 0-1", "norm", "clip", "update 0-3",
                                       "average 0-3 over dp" + every));
    EXPECT_TRUE(analysis::verify(*p).ok());
  }
  EXPECT_THAT(parameter_server(2, {.averages = true}, 2)(one_device(shape(1))).status().message(),
              ::testing::HasSubstr("leave out worker_ranks"));
}

TEST(ElasticAveraging, ExchangesBetweenTheGradientAndTheUpdate) {
  const auto p = compose(one_device(shape(2)), clip_gradients(), elastic_averaging(3, 8));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 3}}}));
  EXPECT_EQ(p->parameters, std::vector{plan::Placement::kDiverged});
  EXPECT_EQ(p->optimizer_state, std::vector{plan::Placement::kDiverged});
  EXPECT_TRUE(has_centre(*p) && has_servers(*p) && !is_remote(*p));
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "norm", "clip",
                                     "elastic_average 0-3 over dp every 8", "update 0-3"));
}

TEST(ElasticAveraging, RefusesWhatItCannotRewrite) {
  EXPECT_EQ(elastic_averaging(2, 0)(one_device(shape(1))).status().message(),
            "elastic_averaging: 2 workers, period 0; give at least 1 worker, and a period of 1 to "
            "1048576 steps");
  EXPECT_EQ(compose(one_device(shape(1)), mirrored(2), elastic_averaging(2, 1)).status().code(),
            Code::kBadPlan);
  const StepOptions half = {.scale_loss = true};
  EXPECT_THAT(
      plan_for({.kind = Strategy::Kind::kElasticAveraging}, shape(2), {.ranks_per_host = {2}}, half)
          .status()
          .message(),
      ::testing::HasSubstr("a loss scale of its own on every rank"));
}

}  // namespace
}  // namespace stormo::parallel
