// Pipelines without ranks that are lost: peers do their work, and all train as one process does.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/parallel/pipeline/reroute.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/memory.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::CutWay;
using test::PlanRank;
using test::PlanRun;

/// The rows of a replica.
data::Batch rows_of(const PlanRun& run, const Batch& all, int replica) {
  const std::int64_t rows = all.x.size(0), n = num_replicas(run.plan), r = replica;
  const Batch mine = all.rows(rows * r / n, rows * (r + 1) / n - rows * r / n);
  return {mine.x, mine.target};
}

/// Who is there, in the order of the job, and who of them computes nothing.
struct Present {
  std::vector<Rank> numbers;
  std::vector<Rank> idle;
};

struct Trained {
  std::map<Rank, test::Values> own;  ///< by number in the mesh: what a rank has at the end
  std::vector<double> losses;
};

/// What a rank has of the model.
test::Values own_values(const model::Chain& chain) {
  test::Values out;
  for (const auto& p : chain.named_parameters()) {
    if (tensor::has_memory(p.value())) out.emplace(p.key(), p.value().detach().clone());
  }
  return out;
}

/// All steps with the ranks that are there. `rejoins`: the last one is that of the plan of all, who
/// are there.
Trained train(const PlanRun& run, const Present& present, bool rejoins) {
  Trained out{.own = {}, .losses = std::vector<double>(run.batches.size())};
  std::mutex mutex;
  auto world = comm::make_inproc_group(static_cast<int>(present.numbers.size())).take_or_throw();
  std::vector<Rank> lost;
  for (Rank r = 0; r < run.plan.mesh.size(); ++r) {
    if (std::ranges::count(present.numbers, r) == 0) lost.push_back(r);
  }
  const plan::AssignedPlan rerouted =
      parallel::reroute(run.plan, lost, 0, present.idle).take_or_throw();
  test::on_ranks(world, [&](comm::Communicator& ranks) {
    const std::vector<bool> has_state(present.numbers.size(), true);
    const AxisGroups groups(ranks, run.plan, MeshRanks{present.numbers, has_state});
    PlanRank rank(run, groups, run.problem.model(3));
    throw_if_error(rank.runner().set_plan(rerouted, [&](int replica) -> Result<data::Batch> {
      return rows_of(run, run.batches[rank.next - 1], replica);
    }));
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      if (rejoins && i + 1 == run.batches.size()) throw_if_error(rank.runner().set_plan(run.plan));
      const StepOutcome outcome = rank.try_step().take_or_throw();
      const std::lock_guard lock(mutex);
      out.losses[i] += outcome.loss_sum;
    }
    {
      const std::lock_guard lock(mutex);
      out.own.emplace(groups.rank(), own_values(*rank.chain));
    }
    EXPECT_EQ(rank.values().size(), rank.chain->named_parameters().size());
    throw_if_error(ranks.barrier());  // then nobody needs this rank's groups
  });
  return out;
}

/// Near to the values of one process; to the bit what several ranks have.
void expect_values(const Trained& found, const test::Values& expected, const std::string& name) {
  test::Values all;
  for (const auto& [number, own] : found.own) {
    const std::string who = name + " rank " + std::to_string(number);
    for (const auto& [parameter, value] : own) {
      const auto [first, is_new] = all.emplace(parameter, value);
      EXPECT_TRUE(is_new || value.equal(first->second)) << who << ": " << parameter;
    }
  }
  test::expect_near(all, expected, 1e-10, name);
}

void expect_as_one_process(const CutWay& way, const Present& present, bool rejoins = false) {
  for (const test::Problem& problem : {test::gpt_problem(), test::mlp_problem()}) {
    // 13 rows; of 3 rows some micro-batches, and some replicas, have none
    std::vector<Batch> batches = problem.batches(2, 13);
    batches.push_back(batches[0].rows(0, 3));
    batches.push_back(batches[1]);
    const Trained found = train(run_of(way, problem, batches), present, rejoins);
    CutWay one = way;
    one.hosts = {1};
    one.strategy = {};
    one.step.commit = false;
    const auto reference = test::train_by_plan(run_of(one, problem, batches));
    expect_values(found, reference[0].values, problem.name);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      EXPECT_NEAR(found.losses[i], reference[0].losses[i], 1e-10) << problem.name << " step " << i;
    }
  }
}

/// Pipelines of two stages.
CutWay pipelines(int replicas) {
  return {"pipelines",
          {2 * replicas},
          {.pipeline = 2},
          {.micro_batches = 2, .clip = true, .commit = true}};
}

TEST(Rerouted, TrainsAsOneProcessWithoutARank) {
  const std::vector<Rank> all = {0, 1, 2, 3};
  for (const Rank lost : all) {
    SCOPED_TRACE("without rank " + std::to_string(lost));
    Present present{.numbers = all};
    std::erase(present.numbers, lost);
    expect_as_one_process(pipelines(2), present);
  }
}

TEST(Rerouted, RanksNeedNotBeInTheOrderOfTheMesh) {
  expect_as_one_process(pipelines(2), {.numbers = {3, 0}});
  expect_as_one_process(pipelines(2), {.numbers = {1, 3, 2}});
  expect_as_one_process(pipelines(2), {.numbers = {2, 3, 1, 0}}, /*rejoins=*/true);
}

TEST(Rerouted, IdleRanksHaveTheSameState) {
  expect_as_one_process(pipelines(2), {.numbers = {0, 1, 3, 2}, .idle = {2}}, /*rejoins=*/true);
  expect_as_one_process(pipelines(3), {.numbers = {0, 1, 2, 4, 5}, .idle = {0, 5}});
}

TEST(Rerouted, ThreeStagesOfDifferentSizesHaveTheSameNorm) {
  CutWay way = pipelines(3);
  way.hosts = {9};
  way.strategy.pipeline = 3;
  way.step.micro_batches = 3;
  expect_as_one_process(way, {.numbers = {0, 2, 4, 5, 6, 7, 8}});
}

}  // namespace
}  // namespace stormo::train
