// A changed plan is refused, or it is another order of the same step: ranks that execute it do what
// it says and train as one process does. So of every axis over which a model or its samples are
// cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/base/rng.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/plan/project.h>

#include "tests/unit/train/columns.h"
#include "tests/unit/train/cut_model.h"
#include "tests/unit/train/late_updates.h"
#include "tests/ways.h"

namespace stormo::train::plan_mutants {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using Kind = Strategy::Kind;

/// A plan, and what trains by it.
struct Way {
  std::string name;
  std::vector<int> hosts;  ///< ranks of each
  Strategy strategy;
  parallel::StepOptions step = {};
  Problem problem = test::mlp_problem();
  protocol::PolicyOptions::Kind policy = protocol::PolicyOptions::Kind::kSync;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

constexpr std::size_t kSteps = 5;

PlanRun run_of(const Way& way) {
  TrainerOptions options;
  options.strategy = way.strategy;
  options.optimizer = {.lr = 0.1, .momentum = 0.9};
  options.clip_norm = way.step.clip ? 0.5 : 0;
  options.gradients.overlap = way.step.prefetch > 0;
  options.servers.policy.kind = way.policy;
  return {.plan = parallel::plan_for(way.strategy, way.problem.model(3)->split_shape(),
                                     {.ranks_per_host = way.hosts}, way.step)
                      .take_or_throw(),
          .hosts = way.hosts,
          .problem = way.problem,
          .batches = way.problem.batches(kSteps, 12),
          .options = options};
}

/// Whether ranks do something else than by `p`.
bool is_another(const StepPlan& mutant, const StepPlan& p) {
  for (Rank r = 0; r < p.mesh.size(); ++r) {
    if (project(mutant, r).actions != project(p, r).actions) return true;
  }
  return false;
}

/// One word of an action is another one.
std::vector<Action> other_forms(const Action& a) {
  std::vector<Action> out;
  const auto with = [&](const std::function<void(Action&)>& change) {
    out.push_back(a);
    change(out.back());
  };
  with([](Action& b) { b.asynchronous = !b.asynchronous; });
  with([](Action& b) { b.micro_batch += b.micro_batch == 0 ? 1 : -1; });
  with([](Action& b) { ++b.range.first; });
  with([](Action& b) { --b.range.last; });
  with([](Action& b) { ++b.range.last; });
  with([](Action& b) { ++b.delay; });
  if (a.delay > 0) with([](Action& b) { --b.delay; });
  if (!a.axes.empty()) with([](Action& b) { b.axes.pop_back(); });
  if (a.slot >= 0) with([](Action& b) { ++b.slot; });
  return out;
}

/// Neighbours in another order, an action at any other place, one left out, or one of another form.
std::vector<StepPlan> mutants(const StepPlan& p) {
  std::vector<StepPlan> out;
  const auto with = [&](const std::function<void(std::vector<Action>&)>& change) {
    out.push_back(p);
    change(out.back().actions);
  };
  Rng random(11, "mutants");
  const std::size_t n = p.actions.size();
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    if (i + 1 < n) with([=](auto& all) { std::swap(all[i], all[i + 1]); });
    with([=](auto& all) { all.erase(all.begin() + at); });
    for (const Action& other : other_forms(p.actions[i])) {
      with([&](auto& all) { all[i] = other; });
    }
    const std::size_t to = random.below(n);
    with([=](auto& all) {
      const Action moved = all[i];
      all.erase(all.begin() + at);
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(to), moved);
    });
  }
  return out;
}

/// By parameter: how many batches its updates are behind those that are computed. A batch is
/// computed with the values of its load.
std::vector<int> delays(const StepPlan& p) {
  std::vector<int> out(static_cast<std::size_t>(num_parameters(p.model)));
  bool loaded = false;
  for (const Action& a : p.actions) {
    loaded = loaded || a.kind == ActionKind::kLoad;
    if (a.kind != ActionKind::kUpdate) continue;
    for (int i = a.range.first; i <= a.range.last; ++i) {
      out[static_cast<std::size_t>(i)] = a.delay - (loaded ? 0 : 1);
    }
  }
  return out;
}

/// What one process makes of the run.
test::Values alone(const Way& way, const PlanRun& run) {
  if (longest_delay(run.plan) > 0) return test::train_with_delays(run, delays(run.plan)).values;
  Way one = way;
  one.hosts = {1};
  one.strategy = {};
  one.step = {.clip = way.step.clip};
  return test::train_by_plan(run_of(one))[0].values;
}

/// What the ranks did and hold.
struct Executed {
  std::vector<std::vector<Action>> traces;
  std::vector<test::Values> values;
};

/// Nothing where the ranks refuse the plan.
std::optional<Executed> execute(const Way& way, const PlanRun& run) {
  const auto ranks = static_cast<std::size_t>(run.ranks());
  Executed out{std::vector<std::vector<Action>>(ranks), std::vector<test::Values>(ranks)};
  std::vector<Status> started(ranks);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    if (way.strategy.kind == Kind::kVertical) {
      test::take_columns(rank, way.strategy.labels, model::cross_entropy);
    }
    const auto r = static_cast<std::size_t>(rank.rank());
    started[r] = rank.start(run.plan);
    if (!started[r].ok()) return;
    const bool overlaps = longest_delay(run.plan) > 0;
    for (std::size_t step = 0; step < kSteps; ++step) {
      if (overlaps) {
        rank.at = {.number = static_cast<std::int64_t>(step) + 1,
                   .closes = test::meets(step, kSteps)};
      }
      rank.steps(1);
    }
    out.values[r] = rank.values();
    out.traces[r] = rank.trace;
    throw_if_error(rank.groups.world().barrier());
  });
  for (const Status& status : started) {
    EXPECT_EQ(status.code(), started[0].code()) << "ranks do not agree: " << status.message();
  }
  if (started[0].ok()) return out;
  EXPECT_EQ(started[0].code(), Code::kBadPlan) << started[0].message();
  return {};
}

/// Ends the program where a plan that verifies makes ranks wait for each other.
std::optional<Executed> execute_in_time(const Way& way, const PlanRun& run) {
  std::promise<void> done;
  std::thread watch([&run, is_done = done.get_future()] {
    if (is_done.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return;
    std::fprintf(stderr, "ranks hang in\n%s", to_text(run.plan).c_str());  // unbuffered
    std::abort();
  });
  auto out = execute(way, run);
  done.set_value();
  watch.join();
  return out;
}

void expect_done(const PlanRun& run, const Executed& executed, const test::Values& reference) {
  const StepPlan& p = run.plan;
  for (std::size_t r = 0; r < executed.values.size(); ++r) {
    const StepPlan mine = project(p, static_cast<Rank>(r));
    if (longest_delay(p) > 0) {
      EXPECT_EQ(test::text_of(executed.traces[r]),
                test::text_of(test::expected_trace(mine, kSteps)));
    } else {
      test::expect_trace(executed.traces[r], mine, kSteps);
    }
    test::expect_near(executed.values[r], reference, 1e-10, to_text(p));
  }
}

class PlanMutants : public testing::TestWithParam<Way> {};

TEST_P(PlanMutants, AreRefusedOrTrainAsOneProcess) {
  const Way& way = GetParam();
  const PlanRun planned = run_of(way);
  std::map<std::vector<int>, test::Values> references;  // by delays
  int tried = 0, ran = 0, by_store = 0;
  for (StepPlan& mutant : mutants(planned.plan)) {
    ++tried;
    if (!analysis::verify(mutant).ok() || !is_another(mutant, planned.plan)) continue;
    PlanRun run = planned;
    run.plan = std::move(mutant);
    const auto executed = execute_in_time(way, run);
    if (!executed) {
      ++by_store;
      continue;
    }
    ++ran;
    const std::vector<int> late = delays(run.plan);
    if (!references.contains(late)) references[late] = alone(way, run);
    expect_done(run, *executed, references[late]);
    if (HasFailure()) return;  // one plan is long enough to read
  }
  std::printf("%d changed plans: %d ran, %d were refused by the store, others by verify\n", tried,
              ran, by_store);
  EXPECT_GT(tried, ran + by_store);
}

Strategy stages(int n, const std::string& schedule, int chunks = 1) {
  return {.period = 100, .pipeline = n, .schedule = schedule, .chunks = chunks};
}

Strategy fsdp(int stage, Strategy s = {}) {
  s.kind = Kind::kFsdp;
  s.parameters = Strategy::Parameters::kSharded;
  s.stage = stage;
  return s;
}

/// Of four layers.
Problem deep() {
  Problem out = test::mlp_problem();
  out.build = [] {
    return std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 9, 7, 8, 5});
  };
  return out;
}

Problem by_columns() {
  Problem out = test::mlp_problem();
  out.build = [] {
    return std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 33, 17, 5},
                                        model::MlpCut::kByColumns);
  };
  return out;
}

std::vector<Way> pipelines() {
  const Problem tied = test::gpt_problem();
  std::vector<Way> out;
  for (const std::string& schedule : parallel::pipeline_schedule_names()) {
    const bool chunks = schedule == "interleaved" || schedule == "zero_bubble_v";
    const int micro_batches = schedule == "ddg" ? 1 : schedule == "zero_bubble_v" ? 3 : 2;
    out.push_back({schedule,
                   {2},
                   stages(2, schedule, chunks ? 2 : 1),
                   {.micro_batches = micro_batches},
                   chunks ? deep() : test::mlp_problem()});
  }
  out.push_back({"tied_and_clipped", {1, 1}, stages(2, "1f1b"), {2, false, true}, tied});
  out.push_back({"three_stages_recomputed",
                 {3},
                 stages(3, "zero_bubble"),
                 {.micro_batches = 3, .recompute = true}});
  out.push_back({"two_versions_of_three", {3}, stages(3, "pipedream_2bw"), {.micro_batches = 3}});
  out.push_back({"replicas_of_stages", {2, 2}, stages(2, "1f1b"), {.micro_batches = 2}});
  out.push_back({"shards_of_stages", {4}, fsdp(1, stages(2, "gpipe")), {.micro_batches = 2}});
  return out;
}

std::vector<Way> others() {
  const Problem gpt = test::gpt_problem();
  const parallel::StepOptions all{.micro_batches = 2, .clip = true, .recompute = true};
  return {{"tensor", {2}, {.tensor = 2}, all, gpt},
          {"sequence", {4}, {.tensor = 2, .sequence_parallel = true}, {.clip = true}, gpt},
          {"shards_of_slices", {4}, fsdp(3, {.tensor = 2}), {.prefetch = 1}},
          {"tensor_in_stages",
           {4},
           {.pipeline = 2, .tensor = 2},
           {.micro_batches = 2, .clip = true},
           gpt},
          {"context_ring", {2}, {.context = 2}, all, gpt},
          {"context_heads",
           {1, 1},
           {.context = 2, .attention = plan::AttentionForm::kHeads},
           {.micro_batches = 2},
           gpt},
          {"spatial", {1, 1}, {.spatial = {1, 2}}, all, test::cnn_problem()},
          {"vertical", {2}, {.kind = Kind::kVertical, .labels = 1}, all, by_columns()},
          {"buckets",
           {2},
           {.parameters = Strategy::Parameters::kReplicated},
           {.clip = true, .bucket_bytes = 300}},
          {"averages_of_stages",
           {4},
           {.kind = Kind::kParameterAveraging, .period = 1, .pipeline = 2},
           {.micro_batches = 2},
           gpt},
          {"state_periods",
           {3},
           {.kind = Kind::kParameterAveraging, .period = 1, .state_periods = {1}}}};
}

/// Of whole models. One worker of servers has one rank or two.
std::vector<Way> strategies() {
  const std::vector<int> hosts = {2};
  std::vector<Way> out;
  for (const test::Way& way : test::ways_on(hosts)) {
    if (way.as_one == test::Way::AsOne::kNever) continue;
    const Way plain{
        .name = way.name, .hosts = hosts, .strategy = way.strategy, .policy = way.policy};
    out.push_back(plain);
    out.push_back(plain);
    out.back().name += "_early";
    out.back().step = {.prefetch = 1, .recompute = true};
  }
  return out;
}

const auto name_of = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Strategies, PlanMutants, testing::ValuesIn(strategies()), name_of);
INSTANTIATE_TEST_SUITE_P(Pipelines, PlanMutants, testing::ValuesIn(pipelines()), name_of);
INSTANTIATE_TEST_SUITE_P(Others, PlanMutants, testing::ValuesIn(others()), name_of);

}  // namespace
}  // namespace stormo::train::plan_mutants
