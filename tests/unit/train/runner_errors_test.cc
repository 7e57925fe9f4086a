// What the Runner owes between plans, for plans that it cannot do, and where the task fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <stormo/model/dense.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>

#include "tests/unit/train/written_plan.h"

namespace stormo::train {
namespace {

using plan::StepPlan;
using test::plain;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using test::run_by_hand;
using test::written;
using ::testing::HasSubstr;

// --- another plan between steps ----------------------------------------------------------------

TEST(RunnerConformanceFollow, DoesAnotherPlanFromTheNextStepOn) {
  const std::string pieces = "load\nforward 0-0\nforward 1-1\nforward 2-2\nloss\n";
  const std::vector<StepPlan> plans = {
      written("dp=2",
              "load\nsum_weights async\nforward 0-2\nloss\nbackward 0-2\n"
              "all_reduce 4-5 over dp async\nall_reduce 0-3 over dp async\n"
              "update 0-5\nagree"),
      written("dp=2",
              "load\nforward 0-2\nloss\nbackward 0-2\nall_reduce 0-1 over dp\n"
              "all_reduce 2-5 over dp\nupdate 2-5\nupdate 0-1\nagree"),
      written("dp=2", pieces + "backward 2-2\nrecompute 1-1\nbackward 1-1\nbackward 0-0\n"
                               "all_reduce 0-5 over dp\nupdate 0-5\nagree")};
  const PlanRun run = run_by_hand(plain(2));
  ASSERT_EQ(run.batches.size(), plans.size());
  const auto same = test::train_by_plan(run);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    for (const StepPlan& next : plans) {
      throw_if_error(rank.runner().set_plan(next));
      EXPECT_EQ(rank.runner().plan(), next);
      rank.trace.clear();
      rank.steps(1);
      test::expect_trace(rank.trace, next, 1);
    }
    test::expect_near(rank.values(), same[0].values, 0, "the plain plan");
  });
}

/// In the order of test::kMlp, so many in each segment.
std::string cut_into(const std::vector<int>& segments) {
  const std::vector<int> elements = {660, 33, 561, 17, 85, 5};
  std::string out = "\n";
  int parameter = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    out += "segment " + std::to_string(s) + ": s" + std::to_string(s) + " flops=0\n";
    for (int i = 0; i < segments[s]; ++i, ++parameter) {
      const std::string p = std::to_string(parameter);
      out += "  parameter " + p + ": p" + p +
             " elements=" + std::to_string(elements[static_cast<std::size_t>(parameter)]) +
             " type=float64\n";
    }
  }
  return out;
}

StepPlan in_two_segments() {
  return written("dp=2",
                 "load\nforward 0-0\nforward 1-1\nloss\nbackward 1-1\nbackward 0-0\n"
                 "all_reduce 0-5 over dp\nupdate 0-5\nagree",
                 "micro_batches=1", test::kReplicas, cut_into({4, 2}));
}

// A plan that is refused leaves the one before it.
TEST(RunnerConformanceFollow, GoesOnWithItsPlanAfterARefusal) {
  const PlanRun run =
      run_by_hand(written("dp=2",
                          "load\nforward 0-0\nforward 1-2\nloss\nbackward 1-2\n"
                          "backward 0-0\nall_reduce 0-5 over dp\nupdate 0-5\nagree"));
  const auto same = test::train_by_plan(run);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(1);
    EXPECT_EQ(rank.runner().set_plan(in_two_segments()).code(), Code::kBadPlan);
    EXPECT_EQ(rank.runner().plan(), run.plan);
    rank.steps(run.batches.size() - 1);
    test::expect_trace(rank.trace, run.plan, run.batches.size());
    test::expect_near(rank.values(), same[0].values, 0, "without a refusal");
  });
}

// --- plans that are refused --------------------------------------------------------------------

struct Refused {
  std::string name;
  StepPlan plan;
  std::string why;
  double clip_norm = 0;
};

std::ostream& operator<<(std::ostream& out, const Refused& r) { return out << r.name; }

/// The step of plain(2), with `actions` between its backward and its agreement.
StepPlan ending(const std::string& actions, const std::string& step = "micro_batches=1") {
  return written("dp=2", "load\nforward 0-2\nloss\nbackward 0-2\n" + actions, step);
}

std::vector<Refused> refused() {
  const std::string end = "all_reduce 0-5 over dp\nupdate 0-5\nagree";
  const std::string no_chain = "the module is no model::Chain of these segments";
  StepPlan one = plain(1), other_size = plain(2), one_more = plain(2), one_less = plain(2);
  one.mesh = {};
  one.parameters = one.frozen = one.optimizer_state = {};
  std::erase_if(one.actions, [](const plan::Action& a) { return !a.axes.empty(); });
  other_size.model.segments[2].parameters[0].elements = 84;
  for (StepPlan* p : {&one_more, &one_less}) {
    for (plan::Action& a : p->actions) {
      if (a.range.last == 5) a.range.last = p == &one_more ? 6 : 4;
    }
  }
  one_more.model.segments[2].parameters.push_back({.name = "layer2.scale", .elements = 1});
  one_less.model.segments[2].parameters.pop_back();
  return {
      {"OfMoreRanks", plain(4), "the plan is for other ranks: mesh dp=4, not mesh dp=2"},
      {"OfOneRank", one, "the plan is for other ranks: a single one, not mesh dp=2"},
      {"OfAnotherSize", other_size,
       "the plan is for another model: 'layer2.linear.weight' has 84 elements, the module's "
       "'layer2.linear.weight' 85"},
      {"OfMoreParameters", one_more,
       "the plan is for another model: the module has no 'layer2.scale'"},
      {"OfFewerParameters", one_less,
       "the plan is for another model: it has no 'layer2.linear.bias'"},
      {"OfFewerSegments", in_two_segments(), "action 1 (forward 0-0: s0): " + no_chain},
      {"OfOtherSegments",
       written("dp=2", "load\nforward 0-0\nforward 1-2\nloss\nbackward 1-2\nbackward 0-0\n" + end,
               "micro_batches=1", test::kReplicas, cut_into({3, 1, 2})),
       "action 1 (forward 0-0: s0): " + no_chain},
      {"CutInTwoWays",
       written("dp=2", "load\nforward 0-0\nforward 1-2\nloss\nbackward 2-2\nbackward 0-1\n" + end),
       "forward and backward of micro-batch 0 are cut into different ranges of segments"},
      {"ThatClipsByNothing",
       ending("all_reduce 0-5 over dp\nnorm\nclip\nupdate 0-5\nagree", "micro_batches=1 clipped"),
       "the plan clips gradients, but there is no clip_norm"},
      {"ThatDoesNotClip", plain(2), "there is a clip_norm, but the plan clips nothing", 1.0},
      {"AgreesInTheMiddle", ending("all_reduce 0-5 over dp\nupdate 0-3\nagree\nupdate 4-5"),
       "action 6 (agree): parameter 4 (layer2.linear.weight) is never updated"},
      {"AgreesTwice", ending(end + "\nagree"),
       "action 7 (agree): comes after the ranks have agreed on the end of the step"},
      {"UpdatesTermsOfASum", ending("all_reduce 0-3 over dp\nupdate 0-5\nagree"),
       "at the end the weights of parameter 4 (layer2.linear.weight) are diverged over dp"},
  };
}

class RunnerConformanceRefusal : public ::testing::TestWithParam<Refused> {};

TEST_P(RunnerConformanceRefusal, NamesTheCauseBeforeAnythingHappens) {
  const PlanRun run = run_by_hand(plain(2), GetParam().clip_norm);
  const test::Values given = test::values_of(*run.problem.model(3));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const Status status = rank.start(GetParam().plan);
    EXPECT_EQ(status.code(), Code::kBadPlan);
    EXPECT_THAT(status.message(), HasSubstr(GetParam().why));
    EXPECT_EQ(rank.next, 0u);
    EXPECT_EQ(test::text_of(rank.trace), "");
    test::expect_near(rank.values(), given, 0, "not trained");
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, RunnerConformanceRefusal, ::testing::ValuesIn(refused()),
                         [](const auto& test) { return test.param.name; });

TEST(RunnerConformanceFollow, RefusesAnotherScaleOfTheLoss) {
  const StepPlan scaled = ending("all_reduce 0-5 over dp\nnorm\nunscale\nupdate 0-5\nagree",
                                 "micro_batches=1 scaled_loss");
  test::on_plan_ranks(run_by_hand(plain(2)), [&](PlanRank& rank) {
    EXPECT_EQ(rank.runner().set_plan(scaled).message(),
              "the plan scales the loss, the run does not");
  });
  test::on_plan_ranks(run_by_hand(scaled), [&](PlanRank& rank) {
    EXPECT_EQ(rank.runner().set_plan(plain(2)).message(),
              "the run scales the loss, the plan does not");
  });
}

// --- errors ------------------------------------------------------------------------------------

/// As text, whether it is returned or thrown.
std::string failure_of(PlanRank& rank) {
  try {
    return rank.try_step().status().message();
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(RunnerConformanceErrors, ExceptionsOfTheTaskPassThrough) {
  test::on_plan_ranks(run_by_hand(plain(1)), [](PlanRank& rank) {
    rank.task.forward = [](const torch::Tensor&) -> torch::Tensor {
      throw std::out_of_range("no such token");
    };
    EXPECT_THROW(rank.try_step(), std::out_of_range);
    EXPECT_EQ(test::text_of(rank.trace), "load\n");
  });
}

// The others are freed by whoever catches it, and tell the same cause.
TEST(RunnerConformanceErrors, ReachTheOtherRanks) {
  for (const StepPlan& plan : {plain(2), written("dp=2",
                                                 "load\nsum_weights async\nforward 0-2\nloss\n"
                                                 "backward 0-2\nall_reduce 0-5 over dp async\n"
                                                 "update 0-5\nagree")}) {
    test::on_plan_ranks(run_by_hand(plan), [](PlanRank& rank) {
      if (rank.rank() == 1) {
        rank.task.loss = [](const torch::Tensor&, const torch::Tensor&) -> torch::Tensor {
          throw std::runtime_error("no such target");
        };
      }
      const std::string why = failure_of(rank);
      if (rank.rank() == 1) rank.groups.world().fail(Status(Code::kException, why));
      EXPECT_THAT(why, HasSubstr("no such target"));
    });
  }
}

TEST(RunnerConformanceErrors, ALossThatIsNotFiniteIsRefused) {
  const test::Values given = test::values_of(*test::mlp_problem().model(3));
  test::on_plan_ranks(run_by_hand(plain(1)), [&](PlanRank& rank) {
    rank.task.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
      return model::cross_entropy(output, target) * std::numeric_limits<double>::quiet_NaN();
    };
    const Status status = rank.try_step().status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.to_string(), HasSubstr("loss"));
    EXPECT_THAT(status.to_string(), HasSubstr("rank 0: the loss is nan"));
    EXPECT_EQ(test::text_of(rank.trace), "load\nforward 0-2\n");
    test::expect_near(rank.values(), given, 0, "not trained");
  });
}

TEST(RunnerConformanceErrors, OfTheDataNameTheAction) {
  test::on_plan_ranks(run_by_hand(plain(1)), [&](PlanRank& rank) {
    rank.load = []() -> Result<data::Batch> { return invalid_argument("no more samples"); };
    EXPECT_EQ(rank.try_step().status().to_string(),
              invalid_argument("no more samples").within("load").to_string());
    EXPECT_EQ(test::text_of(rank.trace), "");
  });
}

// --- models ------------------------------------------------------------------------------------

// No gradient comes to the first segment, whose outputs later pieces read all the same.
TEST(RunnerConformanceModels, CutsBehindSegmentsThatAreFrozen) {
  const Problem problem = test::with_frozen_segment(test::mlp_problem(), 0);
  PlanRun run = run_by_hand(parallel::one_device(problem.model(3)->shape()));
  run.problem = problem;
  const auto whole = test::train_by_plan(run);
  const StepPlan plan = run.plan;
  for (const parallel::Pass& pass : {parallel::by_segment(), parallel::recompute()}) {
    run.plan = parallel::compose(plan, pass).take_or_throw();
    test::expect_near(test::train_by_plan(run)[0].values, whole[0].values, 0, run.plan.strategy);
  }
}

/// The first thing it does is in place.
class AddsInPlace final : public model::Segment {
 public:
  AddsInPlace()
      : Segment("AddsInPlace"),
        bias_(register_parameter("bias", torch::ones({5}, torch::kFloat64))) {}
  torch::Tensor forward(torch::Tensor x) override { return x.add_(bias_); }

 private:
  torch::Tensor bias_;
};
class InPlaceChain final : public model::Chain {
 public:
  InPlaceChain() : Chain("InPlaceChain") {
    append("first", std::make_shared<model::Dense>(20, 5, model::Dense::Activation::kNone));
    append("second", std::make_shared<AddsInPlace>());
  }
};

TEST(RunnerConformanceModels, CutsNoGraphThatASegmentMayChangeInPlace) {
  Problem problem = test::mlp_problem();
  problem.build = [] { return std::make_shared<InPlaceChain>(); };
  PlanRun run = run_by_hand(parallel::one_device(problem.model(3)->shape()));
  run.problem = problem;
  const auto whole = test::train_by_plan(run);
  run.plan = parallel::compose(run.plan, parallel::by_segment()).take_or_throw();
  test::expect_near(test::train_by_plan(run)[0].values, whole[0].values, 0, "in pieces");
}

}  // namespace
}  // namespace stormo::train
