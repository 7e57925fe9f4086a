// What a step does is what its plan says: action by action, told where it is done, on every rank,
// and the outcome is that of one process.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/estimate/step_sizes.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using parallel::StepOptions;
using plan::StepPlan;
using test::Batch;
using test::PlanRun;
using test::Problem;

/// One way to train.
struct Way {
  std::string name;
  std::vector<int> hosts;  // ranks of each
  Strategy strategy;
  StepOptions step;
  bool half = false;
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

/// Whether gradients are rounded on their way.
bool rounds(const Way& way) { return way.step.reduction.codec != plan::Codec::kNone; }

TrainerOptions options_of(const Way& way) {
  TrainerOptions options;
  options.strategy = way.strategy;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  const bool servers_average = way.strategy.exchange_periods.averages;
  if (way.strategy.kind == Strategy::Kind::kParameterAveraging || servers_average || rounds(way)) {
    options.optimizer = {.lr = 0.1, .momentum = 0.9};  // AdamW is not linear
  }
  options.clip_norm = way.step.clip ? 0.5 : 0;
  options.gradients.overlap = way.step.prefetch > 0;
  using Policy = protocol::PolicyOptions::Kind;
  options.servers.policy.kind = servers_average ? Policy::kAverage : Policy::kSync;
  return options;
}

/// The steps of `batches` by the plan of the way.
PlanRun run_of(const Way& way, const Problem& problem, const std::vector<Batch>& batches) {
  return {.plan = parallel::plan_for(way.strategy, problem.model(3)->shape(),
                                     {.ranks_per_host = way.hosts, .can_share = true}, way.step)
                      .take_or_throw(),
          .hosts = way.hosts,
          .problem = problem,
          .batches = batches,
          .options = options_of(way),
          .half = way.half};
}

class Trace : public testing::TestWithParam<Way> {};

/// What the ranks have counted in a step is what the plan says, to the byte.
void expect_predicted_bytes(const Way& way, const StepPlan& plan,
                            const std::vector<test::PlanResult>& runs) {
  const TrainerOptions options = options_of(way);
  analysis::StepSizes sizes = step_sizes_of(options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  comm::CollectiveModel model({}, comm::Selection::defaults());
  const auto cost = analysis::cost(plan, way.hosts, sizes, [&](const auto& hosts, const auto& c) {
                      return model.traffic(hosts, c);
                    }).take_or_throw();
  EXPECT_EQ(cost.total().between_hosts > 0, way.hosts.size() > 1);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    EXPECT_EQ(runs[r].sent[1], static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << "rank " << r << " of\n"
        << to_text(plan);
  }
}

TEST_P(Trace, IsThePlan) {
  const Way& way = GetParam();
  std::vector<Problem> problems = {test::mlp_problem()};
  if (way.half) {
    problems[0].type = torch::kFloat32;
  } else {
    problems.insert(problems.end(), {test::cnn_problem(), test::gpt_problem()});
  }
  for (const Problem& problem : problems) {
    // 13 rows on 4 ranks: parts of 3 and 4; 3 on 4: one rank has none
    std::vector<Batch> batches = problem.batches(2, 13);
    batches.push_back(batches[0].rows(0, 3));
    const PlanRun all = run_of(way, problem, batches);
    const std::vector<test::PlanResult> runs = test::train_by_plan(all);
    for (std::size_t r = 0; r < runs.size(); ++r) {
      test::expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), batches.size());
    }
    expect_predicted_bytes(way, all.plan, runs);
    Way one = way;
    one.hosts = {1};
    one.strategy.worker_ranks = 1;
    const auto reference = test::train_by_plan(run_of(one, problem, batches));
    const double most = way.half || rounds(way) ? 2e-2 : 1e-9;  // AdamW divides by small numbers
    for (const test::PlanResult& r : runs) {
      test::expect_near(r.values, reference[0].values, most, problem.name);
    }
  }
}

std::vector<Way> ways() {
  using enum Strategy::Kind;
  using Strategy::Parameters::kHostShared, Strategy::Parameters::kReplicated,
      Strategy::Parameters::kSharded;
  const std::vector<std::pair<std::string, Strategy>> strategies = {
      {"replicated", {.kind = kDdp, .parameters = kReplicated}},
      {"host_shared", {.kind = kDdp, .parameters = kHostShared}},
      {"stage1", {.kind = kFsdp, .parameters = kSharded, .stage = 1}},
      {"stage2", {.kind = kFsdp, .parameters = kSharded, .stage = 2}},
      {"stage3", {.kind = kFsdp, .parameters = kSharded, .stage = 3}},
      {"hybrid1", {.kind = kFsdp, .parameters = kSharded, .stage = 1, .hybrid = true}},
      {"hybrid3", {.kind = kFsdp, .parameters = kSharded, .stage = 3, .hybrid = true}}};
  const std::vector<std::pair<std::string, std::vector<int>>> places = {
      {"1", {1}}, {"2", {2}}, {"1_1", {1, 1}}, {"2_2", {2, 2}}};
  std::vector<Way> out;
  for (const auto& [name, strategy] : strategies) {
    for (const auto& [place, hosts] : places) {
      const std::string both = name + "_on_" + place;
      const int prefetch = hosts.size() > 1 ? 1 : 0;
      out.push_back({both, hosts, strategy, {.prefetch = prefetch}});
      out.push_back({both + "_micro_batches", hosts, strategy, {.micro_batches = 2, .clip = true}});
      if (strategy.kind == kDdp) {
        out.push_back({both + "_buckets", hosts, strategy, {.clip = true, .bucket_bytes = 64}});
        out.push_back({both + "_buckets_of_micro_batches",
                       hosts,
                       strategy,
                       {.micro_batches = 2, .bucket_bytes = 1000}});
      }
      out.push_back({both + "_half",
                     hosts,
                     strategy,
                     {.micro_batches = 2, .scale_loss = true, .clip = true, .prefetch = prefetch},
                     true});
      out.push_back(
          {both + "_recompute", hosts, strategy, {.prefetch = prefetch, .recompute = true}});
    }
  }
  for (const plan::CodecRow& codec : plan::codec_rows()) {
    if (codec.codec == plan::Codec::kNone) continue;
    for (const auto& [name, strategy] : strategies) {
      for (const auto& [place, hosts] : places) {
        const std::string all = name + "_on_" + place + "_" + std::string(codec.word);
        const StepOptions step{.clip = true, .reduction = {.codec = codec.codec}};
        out.push_back({all, hosts, strategy, step});
        if (strategy.kind != kDdp || hosts.size() == 1) continue;
        out.push_back({all + "_buckets", hosts, strategy, step});
        out.back().step.bucket_bytes = 1000;
      }
    }
  }
  // a worker clips its own gradient, so that is another outcome than that of one process
  const Strategy servers{.kind = kParameterServer};
  for (const int ranks : {1, 2, 4}) {
    const std::string name = "servers_on_" + std::to_string(ranks);
    out.push_back({name, {ranks}, servers, {}});
    out.push_back({name + "_micro_batches", {ranks}, servers, {.micro_batches = 2}});
    out.push_back({name + "_recompute", {ranks}, servers, {.recompute = true}});
  }
  const Strategy averages{.kind = kParameterServer, .exchange_periods = {.averages = true}};
  for (const int ranks : {1, 2, 4}) {
    const std::string name = "averages_of_servers_on_" + std::to_string(ranks);
    out.push_back({name, {ranks}, averages, {}});
    out.push_back({name + "_micro_batches", {ranks}, averages, {.micro_batches = 2}});
    out.push_back({name + "_recompute", {ranks}, averages, {.recompute = true}});
  }
  for (const auto& [ranks, of_worker] : {std::pair{2, 2}, {4, 2}, {3, 3}}) {
    const std::string name =
        "servers_of_" + std::to_string(of_worker) + "_ranks_on_" + std::to_string(ranks);
    const Strategy several{.kind = kParameterServer, .worker_ranks = of_worker};
    out.push_back({name, {ranks}, several, {}});
    out.push_back({name + "_micro_batches", {ranks}, several, {.micro_batches = 2}});
    out.push_back({name + "_recompute", {ranks}, several, {.recompute = true}});
  }
  // one worker has the whole batch
  out.push_back({"servers_of_2_ranks_clip",
                 {2},
                 {.kind = kParameterServer, .worker_ranks = 2},
                 {.micro_batches = 2, .clip = true}});
  const Strategy averaging{.kind = kParameterAveraging, .period = 1};
  for (const auto& [place, hosts] : places) {
    const std::string name = "averaging_on_" + place;
    out.push_back({name, hosts, averaging, {}});
    out.push_back({name + "_micro_batches", hosts, averaging, {.micro_batches = 2}});
    out.push_back({name + "_recompute", hosts, averaging, {.recompute = true}});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(EveryWay, Trace, testing::ValuesIn(ways()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stormo::train
