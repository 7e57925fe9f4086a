// Members of a population against the same rule in one process: who wins a tournament, what others'
// predictions add to a loss, which model is the run's, and what a resumed run goes on with.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/train/population/distillation.h>
#include <stormo/train/population/population_store.h>

#include "plan_run.h"
#include "tests/unit/comm/ranks.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using Kind = Strategy::Kind;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kPeriod = 2;

Strategy strategy_of(Kind kind, const std::string& topology, int period = kPeriod) {
  Strategy out{.kind = kind, .period = period};
  out.topology = topology;
  return out;
}

// --- tournaments of numbers ----------------------------------------------------------------------

/// What a member has: a number as its model, and the momentum of its one update.
struct Player {
  double x = 0, momentum = 0;
  std::int64_t taken = 0;
  bool operator==(const Player&) const = default;
};

/// After so many tournaments of members that begin with `x` and never train again; `likes`: the
/// loss of a model by a member.
std::vector<Player> play(const std::vector<double>& x, const std::string& topology, int tournaments,
                         const std::function<double(int member, double x)>& likes) {
  const auto members = static_cast<int>(x.size());
  TrainerOptions options;
  options.optimizer = {.lr = 1, .momentum = 0.9};
  options.strategy = strategy_of(Kind::kTournament, topology);
  plan::ModelShape shape{.segments = {{.name = "x", .parameters = {}, .borrowed = {}}}};
  shape.segments[0].parameters.push_back({.name = "x", .elements = 1, .dtype = DType::kFloat64});
  const plan::StepPlan plan =
      parallel::plan_for(options.strategy, shape, {.ranks_per_host = {members}}).take_or_throw();
  std::vector<Player> out(x.size());
  comm::on_ranks(members, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const AxisGroups groups(world, plan);
    const auto module = std::make_shared<torch::nn::Module>();
    torch::Tensor own = module->register_parameter("x", torch::full({1}, x[r], torch::kFloat64));
    const auto store = make_store(plan, groups, module, options);
    PopulationStore& population = *store->population();
    population.set_judge(
        {.in_tournament = [&] { return likes(world.rank(), own.item<double>()); }});
    store->set_plan(plan);
    own.mutable_grad() = torch::full({1}, static_cast<double>(world.rank()), torch::kFloat64);
    throw_if_error(store->update({0, 1}, {.lr = 0}));  // momentum becomes the rank
    const auto tournament = std::ranges::find_if(
        plan.actions, [](const plan::Action& a) { return row_of(a.kind).selects; });
    for (int n = 0; n < tournaments; ++n) throw_if_error(store->perform(*tournament, 1));
    double momentum = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [name, values] : store->optimizer().state()) {
      if (name.find("momentum") != std::string::npos) momentum = values.item<double>();
    }
    out[r] = {own.item<double>(), momentum, population.taken()};
  });
  return out;
}

// With one peer the best model is everywhere after log2(N) tournaments, rounded up: each has seen
// those of the 2^n members before it. With it comes the optimizer's state of its member.
TEST(Tournament, TheBestModelIsEverywhereAfterLog2OfTheMembers) {
  const auto likes = [](int, double x) { return std::abs(x - 3); };
  for (const auto& [members, tournaments] :
       {std::pair(2, 1), std::pair(3, 2), std::pair(5, 3), std::pair(8, 3)}) {
    std::vector<double> x;
    for (int r = 0; r < members; ++r) x.push_back(10 - 2 * r * r);
    std::size_t best = 0;
    for (std::size_t r = 0; r < x.size(); ++r) best = likes(0, x[r]) < likes(0, x[best]) ? r : best;
    for (const Player& p : play(x, "one_peer_exponential", tournaments, likes)) {
      EXPECT_EQ(p.x, x[best]) << members;
      EXPECT_EQ(p.momentum, static_cast<double>(best)) << members;
    }
    const std::vector<Player> before = play(x, "one_peer_exponential", tournaments - 1, likes);
    EXPECT_TRUE(std::ranges::any_of(before, [&](const Player& p) { return p.x != x[best]; }));
  }
}

TEST(Tournament, EachMemberJudgesForItselfAndKeepsItsOwnIfNoneIsBetter) {
  // both like what the other has
  const auto other = [](int member, double x) { return std::abs(x - (1 - member)); };
  EXPECT_EQ(play({0, 1}, "ring", 1, other), (std::vector<Player>{{1, 1, 1}, {0, 0, 1}}));
  const auto alike = [](int, double) { return 0.5; };
  EXPECT_EQ(play({4, 5, 6}, "complete", 2, alike),
            (std::vector<Player>{{4, 0, 0}, {5, 1, 0}, {6, 2, 0}}));
}

TEST(Tournament, ALossThatIsNoNumberLosesAgainstAnyOther) {
  const auto likes = [](int, double x) { return x < 0 ? std::nan("") : x; };
  EXPECT_EQ(play({-1, 7}, "ring", 1, likes), (std::vector<Player>{{7, 1, 1}, {7, 1, 0}}));
  EXPECT_EQ(play({-1, -2}, "ring", 1, likes), (std::vector<Player>{{-1, 0, 0}, {-2, 1, 0}}));
}

// --- against one process -------------------------------------------------------------------------

constexpr int kMembers = 3, kSteps = 7;

/// What all members do, and by what they are judged.
struct Course {
  test::PlanRun run;
  test::Batch judged;
  DistillationOptions how = {};
};

Course course_of(Kind kind, const test::Problem& problem, const std::string& topology) {
  TrainerOptions options;
  options.strategy = strategy_of(kind, topology);
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  if (kind == Kind::kCodistillation) options.optimizer = {.lr = 0.1, .momentum = 0.9};  // linear
  const plan::StepPlan plan = parallel::plan_for(options.strategy, problem.model(3)->split_shape(),
                                                 {.ranks_per_host = {kMembers}})
                                  .take_or_throw();
  return {.run = {.plan = plan,
                  .hosts = {kMembers},
                  .problem = problem,
                  .batches = problem.batches(kSteps, 13),
                  .options = options},
          .judged = problem.batches(1, 12)[0]};
}

/// A member begins with a model of its own.
std::vector<test::Values> initial(const test::Problem& problem) {
  std::vector<test::Values> out;
  for (int r = 0; r < kMembers; ++r) {
    out.push_back(test::values_of(*problem.model(static_cast<std::uint64_t>(20 + r))));
  }
  return out;
}

void set_values(torch::nn::Module& module, const test::Values& values) {
  const torch::NoGradGuard no_grad;
  for (auto& p : module.named_parameters()) p.value().copy_(values.at(p.key()));
}

test::Batch share_of(const test::Batch& all, std::int64_t member) {
  const std::int64_t rows = all.x.size(0), first = rows * member / kMembers;
  return all.rows(first, rows * (member + 1) / kMembers - first);
}

double loss_of(model::Chain& chain, const test::Batch& batch) {
  const torch::NoGradGuard no_grad;
  return model::cross_entropy(chain.forward(batch.x), batch.target).item<double>();
}

/// By member.
struct Ends {
  std::vector<test::Values> values = std::vector<test::Values>(kMembers);
  std::vector<std::int64_t> taken = std::vector<std::int64_t>(kMembers);
};

Ends by_ranks(const Course& c) {
  Ends out;
  const std::vector<test::Values> begins = initial(c.run.problem);
  test::on_plan_ranks(c.run, [&](test::PlanRank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank());
    set_values(*rank.chain, begins[r]);
    PopulationStore& population = *rank.store().population();
    population.set_judge(
        {.in_tournament = [&] { return loss_of(*rank.chain, share_of(c.judged, rank.rank())); }});
    if (c.run.options.strategy.kind == Kind::kCodistillation) {
      rank.task = distilled(rank.task, population, c.how);
    }
    for (int i = 0; i < kSteps; ++i) {
      rank.at = {.number = i + 1, .closes = false};
      rank.steps(1);
      const std::int64_t met = (i + 1) / kPeriod * kPeriod;
      for (const PopulationStore::Copy& copy : population.copies()) {
        EXPECT_EQ(copy.version, met) << "the last step after which members met";
        EXPECT_NE(copy.member, rank.rank());
      }
    }
    EXPECT_EQ(population.exchanges(), kSteps / kPeriod);
    EXPECT_LE(population.ages().max, kPeriod);
    out.values[r] = test::values_of(*rank.chain);
    out.taken[r] = population.taken();
    throw_if_error(rank.groups.world().barrier());  // then nobody needs this rank's groups
  });
  return out;
}

/// All members in one process.
class Alone {
 public:
  explicit Alone(const Course& c)
      : c_(c),
        mixing_(plan::mixing_of(c.run.options.strategy.topology, kMembers).take_or_throw()),
        copies_(kMembers) {
    for (const test::Values& values : initial(c.run.problem)) {
      models_.push_back(c.run.problem.model(3));
      set_values(*models_.back(), values);
      optimizers_.push_back(std::make_unique<FusedOptimizer>(
          c.run.options.optimizer, trainable_parameters(*models_.back())));
    }
  }
  Ends train() {
    for (int i = 0; i < kSteps; ++i) {
      for (int r = 0; r < kMembers; ++r) step(i, r);
      if ((i + 1) % kPeriod == 0) meet();
    }
    for (std::size_t r = 0; r < kMembers; ++r) ends_.values[r] = test::values_of(*models_[r]);
    return ends_;
  }

 private:
  void step(int i, int member) {
    const auto r = static_cast<std::size_t>(member);
    const test::Batch batch = share_of(c_.run.batches[static_cast<std::size_t>(i)], member);
    const torch::Tensor output = models_[r]->forward(batch.x);
    torch::Tensor loss = model::cross_entropy(output, batch.target);
    if (c_.how.weight > 0 && i >= c_.how.burn_in && !copies_[r].empty()) {
      const double t = c_.how.temperature;
      torch::Tensor wanted = torch::zeros_like(output).detach();
      for (const test::Values& copy : copies_[r]) {
        const torch::NoGradGuard no_grad;
        const auto other = c_.run.problem.model(3);
        set_values(*other, copy);
        wanted += torch::softmax(other->forward(batch.x) / t, -1) /
                  static_cast<double>(copies_[r].size());
      }
      loss = loss +
             c_.how.weight * t * t * (-wanted * torch::log_softmax(output / t, -1)).sum(-1).mean();
    }
    loss.backward();
    throw_if_error(optimizers_[r]->step({.lr = c_.run.options.optimizer.lr}, 0,
                                        optimizers_[r]->parameters().size()));
    optimizers_[r]->zero_grad();
  }

  void meet() {
    const plan::MixingMatrix& round = mixing_.at(met_++);
    std::vector<test::Values> values;
    std::vector<std::map<std::string, torch::Tensor>> states;
    for (std::size_t r = 0; r < kMembers; ++r) {
      values.push_back(test::values_of(*models_[r]));
      states.emplace_back();
      for (const auto& [name, t] : optimizers_[r]->state()) states.back()[name] = t.clone();
    }
    for (int member = 0; member < kMembers; ++member) {
      const auto r = static_cast<std::size_t>(member);
      const std::vector<Rank> from = senders_to(round, member);
      if (c_.run.options.strategy.kind == Kind::kCodistillation) {
        copies_[r].clear();
        for (const Rank other : from) copies_[r].push_back(values[static_cast<std::size_t>(other)]);
        continue;
      }
      const auto judge = [&](std::size_t other) {
        set_values(*models_[r], values[other]);
        return loss_of(*models_[r], share_of(c_.judged, member));
      };
      std::size_t best = r;
      double least = judge(r);
      for (const Rank other : from) {
        const double loss = judge(static_cast<std::size_t>(other));
        if (loss < least) least = loss, best = static_cast<std::size_t>(other);
      }
      set_values(*models_[r], values[best]);
      throw_if_error(optimizers_[r]->load_state(states[best]));
      ends_.taken[r] += best == r ? 0 : 1;
    }
  }

  const Course& c_;
  const plan::Mixing mixing_;
  std::int64_t met_ = 0;
  std::vector<std::shared_ptr<model::Chain>> models_;
  std::vector<std::unique_ptr<FusedOptimizer>> optimizers_;
  std::vector<std::vector<test::Values>> copies_;
  Ends ends_;
};

void expect_same(const Ends& got, const Ends& wanted, const std::string& what) {
  for (std::size_t r = 0; r < kMembers; ++r) {
    test::expect_near(got.values[r], wanted.values[r], 1e-12,
                      what + ", member " + std::to_string(r));
  }
  EXPECT_EQ(got.taken, wanted.taken) << what;
}

TEST(PopulationTraining, TournamentsAreThoseOfOneProcess) {
  for (const char* topology : {"ring", "one_peer_exponential"}) {
    const Course c = course_of(Kind::kTournament, test::mlp_problem(), topology);
    const Ends alone = Alone(c).train();
    EXPECT_GT(std::ranges::max(alone.taken), 0) << "the test sees something";
    expect_same(by_ranks(c), alone, topology);
  }
}

TEST(PopulationTraining, CodistillationIsThatOfOneProcess) {
  for (const test::Problem& problem : {test::mlp_problem(), test::gpt_problem()}) {
    for (const char* topology : {"complete", "one_peer_exponential"}) {
      Course c = course_of(Kind::kCodistillation, problem, topology);
      for (const DistillationOptions& how :
           {DistillationOptions{},
            DistillationOptions{.weight = 0.5, .temperature = 2, .burn_in = 5}}) {
        c.how = how;
        expect_same(by_ranks(c), Alone(c).train(), problem.name + " " + topology);
      }
    }
  }
}

// What others send changes nothing.
TEST(PopulationTraining, WithoutWeightOrInBurnInMembersAreIndependentRuns) {
  Course c = course_of(Kind::kCodistillation, test::mlp_problem(), "complete");
  const Ends learning = by_ranks(c);
  c.how.weight = 0;
  const Ends without = by_ranks(c);
  c.how = {.burn_in = kSteps};
  const Ends burning_in = by_ranks(c);
  const Ends alone = Alone(c).train();
  for (std::size_t r = 0; r < kMembers; ++r) {
    test::expect_near(burning_in.values[r], without.values[r], 0, "bit for bit");
    test::expect_near(without.values[r], alone.values[r], 1e-12, "nobody sends anything");
    double most = 0;
    for (const auto& [name, value] : learning.values[r]) {
      most = std::max(most, (value - without.values[r].at(name)).abs().max().item<double>());
    }
    EXPECT_GT(most, 1e-6) << "others' predictions change something";
  }
}

// --- through the Trainer -------------------------------------------------------------------------

class PopulationRun : public test::TrainerRun {
 protected:
  PopulationRun() : TrainerRun("stormo_population_") {
    options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    options.strategy = strategy_of(Kind::kTournament, "one_peer_exponential", 4);
  }
};

TEST_F(PopulationRun, TheBestMemberIsTheModelOfTheRun) {
  options.eval_every = 8;
  for (const Kind kind : {Kind::kTournament, Kind::kCodistillation}) {
    options.strategy.kind = kind;
    const Outcome o = run(3);
    ASSERT_TRUE(o.end.population.has_value());
    ASSERT_EQ(o.evals.size(), 3U);
    for (const observe::EvalRecord& e : o.evals) {
      ASSERT_EQ(e.member_losses.size(), 3U);
      EXPECT_NEAR(e.loss, std::ranges::min(e.member_losses), 1e-12) << e.step;
      EXPECT_GT(std::ranges::max(e.member_losses), e.loss)
          << "members differ, after step " << e.step;
      ASSERT_TRUE(e.churn.has_value());
      EXPECT_GT(*e.churn, 0);
      EXPECT_LT(*e.churn, 1);
    }
    const auto& last = o.evals.back().member_losses;
    EXPECT_EQ(o.end.population->best, std::ranges::min_element(last) - last.begin());
    EXPECT_EQ(o.end.population->exchanges, 5);
    EXPECT_FALSE(o.end.averaging.has_value());
  }
}

// Copies are made after every 4th step, and used in the 4 steps behind it.
TEST_F(PopulationRun, TheAgeOfCopiesNeverExceedsThePeriod) {
  options.strategy = strategy_of(Kind::kCodistillation, "complete", 4);
  const Outcome o = run(3);
  EXPECT_EQ(o.end.population->max_age, 4);
  EXPECT_DOUBLE_EQ(o.end.population->mean_age, 2.5);
  options.distillation.burn_in = 20;
  EXPECT_EQ(run(3).end.population->max_age, 0) << "none was used";
}

TEST_F(PopulationRun, ResumedRunsEndInTheSameBits) {
  options.checkpoint = {.directory = folder, .every = 6};
  for (const Kind kind : {Kind::kTournament, Kind::kCodistillation}) {
    for (const char* topology : {"ring", "one_peer_exponential"}) {
      options.strategy = strategy_of(kind, topology, 4);
      expect_bits_of_whole_run(3, {6, 12}, topology);
    }
  }
}

// All members then begin with the best model.
TEST_F(PopulationRun, OtherMembersAndOtherTrainingGoOnWithTheBest) {
  options.checkpoint = {.directory = folder};
  options.overwrite = true;
  accepted_changes = {"strategy"};
  options.steps = 8;
  const Outcome first = run(4);
  options.steps = 9;
  options.optimizer.lr = 1e-9;
  accepted_changes = {"strategy", "optimizer"};
  EXPECT_LE(test::distance(resumed(3).values, first.values), 1e-6);
  options.steps = 10;
  options.strategy = {.kind = Kind::kMirrored, .parameters = Strategy::Parameters::kReplicated};
  EXPECT_LE(test::distance(resumed(2).values, first.values), 1e-6);
}

TEST_F(PopulationRun, RefusesWhatMembersCannotDoInOneMessage) {
  const auto said = [&](int ranks) { return try_run(ranks).status().message(); };
  options.strategy = strategy_of(Kind::kCodistillation, "ring");
  options.recompute = true;
  make_task = [] {
    Task task = test::toy_task(test::make_toy_module(3));
    task.target_unit = 1;
    return task;
  };
  EXPECT_THAT(said(2), AllOf(HasSubstr("leave out train.recompute"),
                             HasSubstr("predicted classes, and the targets are numbers")));
  options.recompute = false;
  options.strategy.kind = Kind::kTournament;
  options.global_batch = 40;
  EXPECT_THAT(said(32), HasSubstr("each of the 32 members judges by its share of the validation"));
  test::on_ranks(2, [&](comm::Communicator& world) {
    const auto refused =
        Trainer(world, test::toy_task(test::make_toy_module(3)), dataset, {}, options).run();
    EXPECT_THAT(refused.status().message(), HasSubstr("judge models by a split \"validation\""));
  });
}

}  // namespace
}  // namespace stormo::train
