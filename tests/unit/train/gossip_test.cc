// Decentralised SGD and tracking of gradients: what they must be equal to, where they end, and what
// a resumed run goes on with.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/step/topology_file.h>

#include "tests/unit/comm/ranks.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::distance;
using testing::HasSubstr;

constexpr int kElements = 5;
constexpr double kRate = 0.1;

/// a_r / 2 |x - b_r|^2 of rank r: curvatures and optima differ.
double curvature(int rank) { return 0.5 + 0.25 * rank; }
torch::Tensor target(int rank) {
  return (torch::arange(kElements, torch::kFloat64) * (1.0 + rank) - rank) / 8;
}
torch::Tensor gradient(int rank, const torch::Tensor& x) {
  return curvature(rank) * (x - target(rank));
}
/// Of the sum of all.
torch::Tensor optimum(int ranks) {
  torch::Tensor sum = torch::zeros(kElements, torch::kFloat64);
  double all = 0;
  for (int r = 0; r < ranks; ++r) {
    sum += curvature(r) * target(r);
    all += curvature(r);
  }
  return sum / all;
}

/// One rank of such a sum, which does the steps of a plan, without averages.
class MixingQuadratic {
 public:
  MixingQuadratic(comm::Communicator& world, const plan::StepPlan& plan,
                  const TrainerOptions& options)
      : plan_(plan),
        groups_(world, plan),
        rank_(world.rank()),
        module_(std::make_shared<torch::nn::Module>()) {
    x_ = module_->register_parameter("x", torch::full({kElements}, 3.0, torch::kFloat64));
    store_ = make_store(plan, groups_, module_, options);
    store_->set_plan(plan);
  }
  void step() {
    for (const plan::Action& a : plan_.actions) {
      const plan::ActionRow& row = row_of(a.kind);
      if (row.mixes()) throw_if_error(store_->perform(a, 1));
      if (row.adds_gradients) x_.mutable_grad() = gradient(rank_, x_.detach());
      if (row.makes.has(plan::Value::kUpdated)) {
        throw_if_error(store_->update({0, 1}, {.lr = kRate}));
      }
    }
  }
  torch::Tensor x() const { return x_.detach().clone(); }
  /// That the last update took.
  torch::Tensor taken() const { return x_.grad().clone(); }

 private:
  const plan::StepPlan& plan_;
  AxisGroups groups_;
  const int rank_;
  std::shared_ptr<torch::nn::Module> module_;
  torch::Tensor x_;
  std::unique_ptr<ParameterStore> store_;
};

/// By step, then by rank: x after it, and what its update took as gradient.
struct Course {
  std::vector<std::vector<torch::Tensor>> x, taken;
};

Course course_of(int ranks, const std::string& topology, bool tracking, int steps) {
  TrainerOptions options;
  options.optimizer = {.lr = kRate};
  options.strategy.kind = Strategy::Kind::kGossip;
  options.strategy.topology = topology;
  options.strategy.gradient_tracking = tracking;
  plan::ModelShape shape{.segments = {{.name = "x", .parameters = {}, .borrowed = {}}}};
  shape.segments[0].parameters.push_back(
      {.name = "x", .elements = kElements, .dtype = DType::kFloat64});
  const plan::StepPlan plan =
      parallel::plan_for(options.strategy, shape, {.ranks_per_host = {ranks}}).take_or_throw();
  const std::vector<torch::Tensor> each(static_cast<std::size_t>(ranks));
  Course out{.x = std::vector(static_cast<std::size_t>(steps), each),
             .taken = std::vector(static_cast<std::size_t>(steps), each)};
  comm::on_ranks(ranks, [&](comm::Communicator& world) {
    MixingQuadratic mine(world, plan, options);
    const auto r = static_cast<std::size_t>(world.rank());
    for (std::size_t step = 0; step < out.x.size(); ++step) {
      mine.step();
      out.x[step][r] = mine.x();
      out.taken[step][r] = mine.taken();
    }
  });
  return out;
}

torch::Tensor mean_of(const std::vector<torch::Tensor>& all) { return torch::stack(all).mean(0); }

double most(const torch::Tensor& x) { return x.abs().max().item<double>(); }

std::vector<torch::Tensor> mixed(const plan::MixingMatrix& w, const std::vector<torch::Tensor>& x) {
  std::vector<torch::Tensor> out;
  for (const auto& terms : w) {
    out.push_back(torch::zeros(kElements, torch::kFloat64));
    for (const plan::MixingTerm& t : terms) {
      out.back() += t.weight * x[static_cast<std::size_t>(t.from)];
    }
  }
  return out;
}

const std::vector<std::pair<int, const char*>> kTopologies = {
    {2, "ring"},        {5, "ring"},
    {6, "torus"},       {4, "hypercube"},
    {7, "exponential"}, {6, "one_peer_exponential"},
    {3, "complete"},    {4, "edges:0-1,0-2,0-3"}};

// x_i <- sum of W_ij x_j - lr * g_i(x_i), which is linear here.
TEST(Gossip, OnQuadraticsFollowsTheClosedRecurrence) {
  for (const auto& [ranks, topology] : kTopologies) {
    const plan::Mixing mixing = plan::mixing_of(topology, ranks).take_or_throw();
    const Course course = course_of(ranks, topology, /*tracking=*/false, 30);
    std::vector<torch::Tensor> x(static_cast<std::size_t>(ranks),
                                 torch::full({kElements}, 3.0, torch::kFloat64));
    for (std::size_t step = 0; step < course.x.size(); ++step) {
      std::vector<torch::Tensor> next = mixed(mixing.at(static_cast<std::int64_t>(step)), x);
      for (int r = 0; r < ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        next[i] = next[i] - kRate * gradient(r, x[i]);
        EXPECT_LE(most(course.x[step][i] - next[i]), 1e-12) << topology << ", step " << step;
      }
      x = std::move(next);
    }
  }
}

TEST(Gossip, TheMeanMovesByTheMeanGradientTo1e12) {
  for (const bool tracking : {false, true}) {
    for (const auto& [ranks, topology] : kTopologies) {
      const Course course = course_of(ranks, topology, tracking, 30);
      for (std::size_t step = 1; step < course.x.size(); ++step) {
        std::vector<torch::Tensor> gradients;
        for (int r = 0; r < ranks; ++r) {
          gradients.push_back(gradient(r, course.x[step - 1][static_cast<std::size_t>(r)]));
        }
        // the mean of the estimates is that of the gradients, at every step
        EXPECT_LE(most(mean_of(course.taken[step]) - mean_of(gradients)), 1e-12) << topology;
        const torch::Tensor expected = mean_of(course.x[step - 1]) - kRate * mean_of(gradients);
        EXPECT_LE(most(mean_of(course.x[step]) - expected), 1e-12) << topology << ", " << step;
      }
    }
  }
}

// With a constant rate D-PSGD ends where (1 - W + lr A) x = lr A b, which is not the optimum, nor
// the same on all ranks. Estimates of the mean gradient are 0 at the optimum.
TEST(GradientTracking, ReachesTheOptimumWhereGossipStopsAtItsBias) {
  constexpr int kRanks = 5, kSteps = 300;
  const torch::Tensor best = optimum(kRanks);
  torch::Tensor system = torch::eye(kRanks, torch::kFloat64), right = {};
  const plan::Mixing ring = plan::mixing_of("ring", kRanks).take_or_throw();
  std::vector<torch::Tensor> targets;
  for (int r = 0; r < kRanks; ++r) {
    for (const plan::MixingTerm& t : ring.at(0)[static_cast<std::size_t>(r)]) {
      system[r][t.from] -= t.weight;
    }
    system[r][r] += kRate * curvature(r);
    targets.push_back(kRate * curvature(r) * target(r));
  }
  const torch::Tensor bias = torch::matmul(torch::inverse(system), torch::stack(targets));
  const Course plain = course_of(kRanks, "ring", /*tracking=*/false, kSteps);
  EXPECT_LE(most(torch::stack(plain.x.back()) - bias), 1e-10);
  EXPECT_GT(most(torch::stack(plain.x.back()) - best), 1e-2);
  for (const char* topology : {"ring", "one_peer_exponential"}) {
    const Course tracked = course_of(kRanks, topology, /*tracking=*/true, kSteps);
    EXPECT_LE(most(torch::stack(tracked.x.back()) - best), 1e-10) << topology;
    EXPECT_LE(most(torch::stack(tracked.taken.back())), 1e-10) << topology;
  }
}

class GossipRun : public test::TrainerRun {
 protected:
  GossipRun() : TrainerRun("stormo_gossip_") {
    options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    gossip("ring");
  }
  void gossip(const std::string& topology, bool tracking = false) {
    options.strategy = {.kind = Strategy::Kind::kGossip, .period = 4};
    options.strategy.topology = topology;
    options.strategy.gradient_tracking = tracking;
  }
};

// All weights 1 / n: what each rank mixes behind its update is the average of all.
TEST_F(GossipRun, BehindTheUpdateACompleteMixIsTheAverageOfEveryStep) {
  options.optimizer = {.lr = 0.05, .momentum = 0};
  options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = 1};
  const Outcome averaged = run(4);
  options.strategy.period = 1000;
  options.passes = {parallel::mix("complete")};
  EXPECT_LE(distance(run(4).values, averaged.values), 1e-12);
  options.passes = {parallel::mix("ring")};
  EXPECT_GT(distance(run(4).values, averaged.values), 1e-6);
}

TEST_F(GossipRun, ResumedRunsEndInTheSameBits) {
  options.checkpoint = {.directory = folder, .every = 6};
  for (const char* topology : {"ring", "one_peer_exponential"}) {
    for (const bool tracking : {false, true}) {
      gossip(topology, tracking);
      options.overwrite = true;
      options.steps = 20;
      const Outcome whole = run(4);
      for (const std::int64_t steps : {6, 12}) {
        options.steps = steps;
        run(4);
        options.steps = 20;
        EXPECT_EQ(resumed(4).end.weights_hash, whole.end.weights_hash) << topology << steps;
      }
    }
  }
}

// A checkpoint has the mean of all ranks: any training goes on with it.
TEST_F(GossipRun, GoesOnWithOtherRanksAndInOtherTraining) {
  options.checkpoint = {.directory = folder, .every = 8};
  options.overwrite = true;
  accepted_changes = {"strategy"};
  options.steps = 8;
  gossip("torus", true);
  run(4);
  options.steps = 16;
  gossip("exponential");
  EXPECT_TRUE(std::isfinite(resumed(3).end.train_loss));
  options.steps = 24;
  options.strategy = {.kind = Strategy::Kind::kMirrored,
                      .parameters = Strategy::Parameters::kReplicated};
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 32;
  gossip("ring");
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
}

TEST_F(GossipRun, SaysWhichTopologyDoesNotFit) {
  gossip("hypercube");
  EXPECT_THAT(try_run(3).status().message(),
              HasSubstr("strategy 'gossip' mixes by topology 'hypercube': 3 ranks are no power of "
                        "two"));
  gossip("file:/no/such/file");
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("topology file /no/such/file: "));
}

TEST_F(GossipRun, ReadsATopologyFromAFile) {
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/star.txt";
  std::ofstream(path) << "# the first in the middle\nedges\n0 1\n0 2\n";
  EXPECT_EQ(read_topology("file:" + path).take_or_throw(), "edges:0-1,0-2");
  EXPECT_EQ(read_topology("ring").take_or_throw(), "ring");
  gossip("edges:0-1,0-2");
  const Outcome given = run(3);
  gossip("file:" + path);
  EXPECT_EQ(run(3).end.weights_hash, given.end.weights_hash);
  std::ofstream(path) << "edges\n0 1 2\n";
  EXPECT_EQ(read_topology("file:" + path).status().message(),
            "topology file " + path + ": line 2: expected an edge, which is two ranks, as 0 1");
}

}  // namespace
}  // namespace stormo::train
