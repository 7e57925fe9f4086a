// What a step does is what its plan says: action by action, told where it is done, on every rank,
// and the outcome is that of one process.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <stormo/plan/adasum.h>
#include <stormo/train/estimate/step_sizes.h>

#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/predicted_cost.h"
#include "tests/ways.h"

namespace stormo::train {
namespace {

using parallel::StepOptions;
using test::Batch;
using test::PlanRun;
using test::Problem;
using test::Way;

/// A way to train, somewhere.
struct Case {
  std::string name;
  Way way;
  std::vector<int> hosts;  // ranks of each
  StepOptions step;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Whether gradients are rounded on their way.
bool rounds(const Case& c) { return c.step.reduction.codec != Codec::kNone; }
/// Whether they become one in another way than by a sum.
bool is_by_adasum(const Case& c) { return c.step.reduction.all_reduce == plan::kAdasum; }
/// Whether so little is left of them that a few steps go another way.
bool goes_another_way(Codec codec) { return codec.kind > Codec::kInt8; }

TrainerOptions options_of(const Case& c) {
  TrainerOptions options;
  options.strategy = c.way.strategy;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  if (c.way.as_one != Way::AsOne::kAlways || rounds(c)) {
    options.optimizer = {.lr = 0.1, .momentum = 0.9};  // AdamW is not linear
  }
  options.clip_norm = c.step.clip ? 0.5 : 0;
  options.gradients.overlap = c.step.prefetch > 0;
  options.servers.policy.kind = c.way.policy;
  return options;
}

/// The steps of `batches` by the plan of the run.
PlanRun run_of(const Case& c, const Problem& problem, const std::vector<Batch>& batches) {
  return {.plan = parallel::plan_for(c.way.strategy, problem.model(3)->split_shape(),
                                     {.ranks_per_host = c.hosts}, c.step)
                      .take_or_throw(),
          .hosts = c.hosts,
          .problem = problem,
          .batches = batches,
          .options = options_of(c),
          .half = c.step.scale_loss};
}

class Trace : public testing::TestWithParam<Case> {};

/// What the ranks have counted in a step is what the plan says, to the byte.
void expect_predicted_bytes(const PlanRun& run, const std::vector<test::PlanResult>& ranks) {
  analysis::StepSizes sizes = step_sizes_of(run.options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  const analysis::StepCost cost = test::predicted_cost(run, sizes);
  EXPECT_EQ(cost.total().between_hosts > 0, run.hosts.size() > 1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].sent[1], static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << "rank " << r << " of\n"
        << to_text(run.plan);
  }
}

TEST_P(Trace, IsThePlan) {
  const Case& c = GetParam();
  std::vector<Problem> problems = {test::mlp_problem()};
  if (c.step.scale_loss) {
    problems[0].type = torch::kFloat32;
  } else {
    problems.insert(problems.end(), {test::cnn_problem(), test::gpt_problem()});
  }
  if (is_by_adasum(c)) {
    for (Problem& problem : problems) problem.type = torch::kFloat32;
  }
  for (const Problem& problem : problems) {
    // 13 rows on 4 ranks: parts of 3 and 4; 3 on 4: one rank has none
    std::vector<Batch> batches = problem.batches(2, 13);
    batches.push_back(batches[0].rows(0, 3));
    const PlanRun all = run_of(c, problem, batches);
    const std::vector<test::PlanResult> ranks = test::train_by_plan(all);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      test::expect_trace(ranks[r].trace, project(all.plan, static_cast<Rank>(r)), batches.size());
    }
    expect_predicted_bytes(all, ranks);
    if (goes_another_way(c.step.reduction.codec) || is_by_adasum(c)) {
      for (const test::PlanResult& r : ranks) {
        test::expect_near(r.values, ranks[0].values, 0, problem.name);
      }
      continue;
    }
    if (c.way.as_one == Way::AsOne::kNever) continue;
    Case one = c;
    one.hosts = {1};
    one.way.strategy.worker_ranks = 1;
    const auto reference = test::train_by_plan(run_of(one, problem, batches));
    const double most =
        c.step.scale_loss || rounds(c) ? 2e-2 : 1e-9;  // AdamW divides by small numbers
    for (const test::PlanResult& r : ranks) {
      test::expect_near(r.values, reference[0].values, most, problem.name);
    }
  }
}

/// What a step may have besides, by name.
std::vector<std::pair<std::string, StepOptions>> steps(const Way& way,
                                                       const std::vector<int>& hosts) {
  const bool as_one = way.row().trains_as_one;  // else a rank clips its own gradient
  const int prefetch = hosts.size() > 1 && way.row().has_key("overlap") ? 1 : 0;
  std::vector<std::pair<std::string, StepOptions>> out = {
      {"", {.prefetch = prefetch}},
      {"_micro_batches", {.micro_batches = 2, .clip = as_one}},
      {"_half", {.micro_batches = 2, .scale_loss = true, .clip = true, .prefetch = prefetch}},
      {"_recompute", {.prefetch = prefetch, .recompute = true}}};
  if (way.row().all_reduces) {
    out.push_back({"_buckets", {.clip = true, .bucket_bytes = 64}});
    out.push_back({"_buckets_of_micro_batches", {.micro_batches = 2, .bucket_bytes = 1000}});
    const parallel::ReductionForm adasum{.all_reduce = plan::kAdasum};
    out.push_back({"_adasum", {.micro_batches = 2, .clip = true, .reduction = adasum}});
    out.push_back(
        {"_adasum_buckets", {.scale_loss = true, .bucket_bytes = 1000, .reduction = adasum}});
  }
  for (const CodecRow& codec : codec_rows()) {
    if (codec.codec == Codec::kNone || !as_one) continue;
    const bool coarse = goes_another_way(codec.codec);
    if (coarse && hosts != std::vector<int>{3} && hosts != std::vector<int>{1, 1}) continue;
    StepOptions step{.clip = true, .reduction = {.codec = codec.codec}};
    const std::string name = "_" + std::string(codec.word);
    out.push_back({name, step});
    if (!way.row().all_reduces || hosts.size() == 1 || coarse) continue;
    step.bucket_bytes = 1000;
    out.push_back({name + "_buckets", step});
  }
  return out;
}

std::vector<Case> cases() {
  const std::vector<std::pair<std::string, std::vector<int>>> places = {
      {"1", {1}}, {"2", {2}}, {"3", {3}}, {"4", {4}}, {"1_1", {1, 1}}, {"2_2", {2, 2}}};
  std::vector<Case> out;
  for (const auto& [place, hosts] : places) {
    for (const Way& way : test::ways_on(hosts)) {
      // workers share the memory of servers
      const bool served = has_servers(way.strategy.kind);
      if (served ? hosts.size() > 1 : hosts.front() > 2) continue;
      for (const auto& [name, step] : steps(way, hosts)) {
        if (way.fits(hosts, step))
          out.push_back({way.name + "_on_" + place + name, way, hosts, step});
      }
      // one worker has the whole batch
      if (way.strategy.worker_ranks == 2 && hosts == std::vector{2}) {
        out.push_back({way.name + "_clip", way, hosts, {.micro_batches = 2, .clip = true}});
      }
    }
  }
  return out;
}

// What a strategy refuses is no case.
TEST(TraceCases, NoWayIsLeftOutUnnoticed) { EXPECT_GE(cases().size(), 245u); }

INSTANTIATE_TEST_SUITE_P(EveryWay, Trace, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stormo::train
