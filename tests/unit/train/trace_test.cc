// What a step does is what its plan says: action by action, told where it is done, on every rank,
// and the outcome is that of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_verify.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/model/dense.h>
#include <stormo/parallel/bucket.h>
#include <stormo/parallel/by_segment.h>
#include <stormo/parallel/host_shared.h>
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/recompute.h>
#include <stormo/parallel/sharded.h>
#include <stormo/parallel/strategy.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/world/axis_groups.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using parallel::StepOptions;
using plan::Action;
using plan::StepPlan;
using test::Batch;
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

struct RankRun {
  std::vector<Action> trace;
  std::vector<std::uint64_t> sent;  // to other hosts, by step
  test::Values values;
};

Task task_of(const std::shared_ptr<model::Chain>& chain, bool half) {
  Task task;
  task.module = chain;
  task.forward = [chain](const torch::Tensor& x) { return chain->forward(x); };
  task.loss = model::cross_entropy;
  task.shape = chain->shape();
  if (half) task.autocast = torch::kHalf;
  return task;
}

TrainerOptions options_of(const Way& way) {
  TrainerOptions options;
  options.strategy = way.strategy;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.clip_norm = way.step.clip ? 0.5 : 0;
  options.gradients.overlap = way.step.prefetch > 0;
  return options;
}

/// For each rank its group of each axis: threads have no launcher to connect subgroups with. Groups
/// live in hosts as the ranks do: those of "dp" have one rank on each host, the others are in one.
std::vector<AxisGroups::Groups> groups_of(const plan::Mesh& mesh) {
  std::vector<AxisGroups::Groups> out(static_cast<std::size_t>(mesh.size()));
  for (const plan::Axis& axis : mesh.axes) {
    for (Rank first = 0; first < mesh.size() && axis.size < mesh.size(); ++first) {
      const std::vector<Rank> members = mesh.group(first, axis.name);
      if (members.front() != first) continue;
      test::Group group = axis.name == "dp" ? comm::make_hosts(std::vector<int>(members.size(), 1))
                                            : comm::make_hosts({axis.size});
      for (std::size_t i = 0; i < members.size(); ++i) {
        out[static_cast<std::size_t>(members[i])][axis.name] = std::move(group[i]);
      }
    }
  }
  return out;
}

/// Some steps of this rank's rows of the batches.
RankRun train(const AxisGroups& groups, const StepPlan& plan, const Way& way,
              const std::shared_ptr<model::Chain>& chain, const std::vector<Batch>& batches) {
  const TrainerOptions options = options_of(way);
  comm::Communicator& world = groups.world();
  const auto store = make_store(plan, groups, chain, options);
  std::unique_ptr<GradScaler> scaler;
  if (plan.scaled_loss) scaler = std::make_unique<GradScaler>(world, options.loss_scale);
  LaneTimer lanes(world.rank());
  RankRun run;
  std::size_t next = 0;
  const auto load = [&]() -> Result<data::Batch> {
    const Batch& all = batches[next++];
    const std::int64_t rows = all.x.size(0), n = world.size(), r = world.rank();
    const Batch mine = all.rows(rows * r / n, rows * (r + 1) / n - rows * r / n);
    return data::Batch{mine.x, mine.target};
  };
  const auto runner = Runner::create(plan, world.rank(),
                                     {.load = load,
                                      .task = task_of(chain, way.half),
                                      .store = *store,
                                      .lanes = lanes,
                                      .scaler = scaler.get(),
                                      .clip_norm = options.clip_norm,
                                      .done = [&run](const Action& a) { run.trace.push_back(a); }})
                          .take_or_throw();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::uint64_t before = groups.bytes_sent();
    runner->step(0.01).take_or_throw();
    run.sent.push_back(groups.bytes_sent() - before);
  }
  const auto readable = store->readable();
  run.values = test::values_of(*chain);
  return run;
}

class Trace : public testing::TestWithParam<Way> {
 protected:
  static std::vector<RankRun> run(const Way& way, const Problem& problem,
                                  const std::vector<Batch>& batches, StepPlan& plan) {
    test::Group group = comm::make_hosts(way.hosts);
    std::vector<std::shared_ptr<model::Chain>> models;
    for (std::size_t r = 0; r < group.size(); ++r) models.push_back(problem.model(3));
    plan = parallel::plan_for(way.strategy, models[0]->shape(),
                              {.ranks_per_host = way.hosts, .can_share = true}, way.step)
               .take_or_throw();
    std::vector<AxisGroups::Groups> groups = groups_of(plan.mesh);
    std::vector<RankRun> runs(group.size());
    test::on_ranks(group, [&](comm::Communicator& world) {
      const auto r = static_cast<std::size_t>(world.rank());
      runs[r] =
          train(AxisGroups(world, plan.mesh, std::move(groups[r])), plan, way, models[r], batches);
    });
    return runs;
  }
};

/// Those of one lane: what is asynchronous starts when its gradients are there, and the lanes go on
/// beside each other.
std::vector<Action> lane(const std::vector<Action>& actions, bool asynchronous) {
  std::vector<Action> out;
  std::ranges::copy_if(actions, std::back_inserter(out),
                       [=](const Action& a) { return a.asynchronous == asynchronous; });
  return out;
}

std::string text_of(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& a : actions) out += to_text(a) + "\n";
  return out;
}

/// What the ranks have counted in a step is what the plan says, to the byte.
void expect_predicted_bytes(const Way& way, const StepPlan& plan,
                            const std::vector<RankRun>& runs) {
  const TrainerOptions options = options_of(way);
  analysis::StepSizes sizes = step_sizes_of(options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  comm::CollectiveModel model({}, comm::Selection::shipped());
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
    StepPlan plan;
    const std::vector<RankRun> runs = run(way, problem, batches, plan);
    std::vector<Action> expected;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      expected.insert(expected.end(), plan.actions.begin(), plan.actions.end());
    }
    for (const RankRun& r : runs) {
      // buckets are sent as soon as their gradients are there
      if (way.step.bucket_bytes == 0) {
        EXPECT_EQ(text_of(r.trace), text_of(expected)) << problem.name;
      }
      for (const bool asynchronous : {false, true}) {
        const auto done = lane(r.trace, asynchronous), planned = lane(expected, asynchronous);
        EXPECT_EQ(done, planned) << problem.name << "\n--- done\n"
                                 << text_of(done) << "--- planned\n"
                                 << text_of(planned);
      }
    }
    expect_predicted_bytes(way, plan, runs);
    StepPlan alone;
    Way one = way;
    one.hosts = {1};
    const std::vector<RankRun> reference = run(one, problem, batches, alone);
    const double most = way.half ? 2e-2 : 1e-9;  // AdamW divides by small numbers
    for (const auto& [name, value] : reference[0].values) {
      for (const RankRun& r : runs) {
        const double off = (r.values.at(name) - value).abs().max().item<double>();
        EXPECT_LE(off, most) << problem.name << " " << name;
      }
    }
  }
}

std::vector<Way> ways() {
  using enum Strategy::Kind;
  using enum Strategy::Parameters;
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
  return out;
}

/// Trains the problem on ranks of one host by the plan; the values of rank 0, and what it did.
test::Values values_by(const StepPlan& plan, const Problem& problem, const Way& way,
                       std::vector<Action>* trace = nullptr) {
  const std::vector<Batch> batches = problem.batches(3, 12);
  test::Group group = comm::make_hosts({plan.mesh.size()});
  std::vector<std::shared_ptr<model::Chain>> models;
  for (std::size_t r = 0; r < group.size(); ++r) models.push_back(problem.model(3));
  test::Values values;
  if (group.size() == 1) {
    return train(AxisGroups(*group[0], plan), plan, way, models[0], batches).values;
  }
  test::on_ranks(group, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    RankRun run;
    try {
      run = train(AxisGroups(world, plan), plan, way, models[r], batches);
    } catch (const Error& e) {
      if (trace == nullptr || e.status().code() != Code::kBadPlan) throw;
    }
    if (r > 0) return;
    values = std::move(run.values);
    if (trace != nullptr) *trace = std::move(run.trace);
  });
  return values;
}

void expect_equal(const test::Values& a, const test::Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_TRUE(value.equal(b.at(name))) << name;
}

/// A pass that no strategy has: forward and backward segment by segment, and a reduction and an
/// update for each of them.
Result<StepPlan> piece_by_piece(const StepPlan& in) {
  StepPlan out = in;
  out.strategy += "+piece_by_piece";
  out.actions.clear();
  const int last = all_segments(in.model).last;
  for (const Action& a : in.actions) {
    const bool segments = range_of(a.kind) == plan::RangeOf::kSegments;
    if (range_of(a.kind) == plan::RangeOf::kNothing) out.actions.push_back(a);
    for (int s = 0; s <= last && range_of(a.kind) != plan::RangeOf::kNothing; ++s) {
      const int segment = a.kind == plan::ActionKind::kForward ? s : last - s;
      Action one = a;
      one.range =
          segments ? plan::Range{segment, segment} : parameters_of(in.model, {segment, segment});
      out.actions.push_back(one);
    }
  }
  return out;
}

TEST(HandWrittenPlan, TrainsToTheSameBits) {
  const Problem problem = test::mlp_problem();
  const Way way{.name = "", .hosts = {2}, .strategy = {}, .step = {}};
  const auto whole = parallel::plan_for({.kind = Strategy::Kind::kMirrored},
                                        problem.model(3)->shape(), {.ranks_per_host = {2}});
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto pieces = parallel::compose(*whole, piece_by_piece);
  ASSERT_TRUE(pieces.ok()) << pieces.status().to_string();
  EXPECT_GT(pieces->actions.size(), whole->actions.size() + 6);
  expect_equal(values_by(*whole, problem, way), values_by(*pieces, problem, way));
}

/// The steps that an exchange of two neighbours makes of a plan, where they verify.
std::vector<StepPlan> other_orders(const StepPlan& plan) {
  std::vector<StepPlan> out;
  for (std::size_t i = 0; i + 1 < plan.actions.size(); ++i) {
    StepPlan other = plan;
    std::swap(other.actions[i], other.actions[i + 1]);
    if (analysis::verify(other).ok()) out.push_back(std::move(other));
  }
  return out;
}

// What another order of actions says is what happens, and it changes no number: no mutant that
// verifies runs unnoticed.
TEST(Mutants, ThatVerifyRunAsTheyAre) {
  const Problem problem = test::mlp_problem();
  const plan::ModelShape shape = problem.model(3)->shape();
  const std::vector<std::vector<parallel::Pass>> ways = {
      {parallel::mirrored(2)},
      {parallel::mirrored(2), parallel::bucket(300)},
      {parallel::host_shared(1, 2), parallel::recompute()},
      {parallel::sharded({.stage = 1, .ranks = 2})},
      {parallel::sharded({.stage = 3, .ranks = 2, .prefetch = 1}), parallel::recompute()}};
  int tried = 0, refused = 0;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const StepPlan plan = parallel::compose(parallel::one_device(shape), ways[w]).take_or_throw();
    const Way way{.name = "",
                  .hosts = {2},
                  .strategy = {.kind = Strategy::Kind::kFsdp, .stage = w == 3 ? 1 : 3}};
    const test::Values values = values_by(plan, problem, way);
    for (const StepPlan& other : other_orders(plan)) {
      std::vector<Action> trace;
      const test::Values mine = values_by(other, problem, way, &trace);
      ++tried;
      if (trace.empty()) {  // before the first step
        ++refused;
        continue;
      }
      expect_equal(mine, values);
      ASSERT_EQ(trace.size(), 3 * other.actions.size());
      trace.resize(other.actions.size());
      for (const bool asynchronous : {false, true}) {
        EXPECT_EQ(lane(trace, asynchronous), lane(other.actions, asynchronous)) << to_text(other);
      }
    }
  }
  std::printf("%d orders that verify: %d refused before the first step, the others ran\n", tried,
              refused);
  EXPECT_GT(tried - refused, 20);
}

/// No gradient comes to the first segment, whose outputs later pieces read all the same.
TEST(HandWrittenPlan, CutsBehindSegmentsThatAreFrozen) {
  Problem problem = test::mlp_problem();
  const auto build = problem.build;
  problem.build = [build] {
    auto chain = build();
    for (const torch::Tensor& p : chain->segments()[0]->parameters()) p.set_requires_grad(false);
    return chain;
  };
  const Way way{.name = "", .hosts = {1}, .strategy = {}, .step = {}};
  const StepPlan whole = parallel::one_device(problem.model(3)->shape());
  const test::Values values = values_by(whole, problem, way);
  for (const parallel::Pass& pass : {parallel::by_segment(), parallel::recompute()}) {
    expect_equal(values, values_by(parallel::compose(whole, pass).take_or_throw(), problem, way));
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

TEST(HandWrittenPlan, CutsNoGraphThatASegmentMayChangeInPlace) {
  Problem problem = test::mlp_problem();
  problem.build = [] { return std::make_shared<InPlaceChain>(); };
  const Way way{.name = "", .hosts = {1}, .strategy = {}, .step = {}};
  const StepPlan whole = parallel::one_device(problem.model(3)->shape());
  const auto pieces = parallel::compose(whole, piece_by_piece);
  ASSERT_TRUE(pieces.ok()) << pieces.status().to_string();
  expect_equal(values_by(whole, problem, way), values_by(*pieces, problem, way));
}

TEST(HandWrittenPlan, ThatAStoreCannotDoIsRefusedBeforeTheFirstStep) {
  const Problem problem = test::mlp_problem();
  const auto refusal = [&](Strategy strategy, const parallel::Pass& pass) {
    const Way way{.name = "", .hosts = {1}, .strategy = strategy, .step = {}};
    const auto plan = parallel::compose(parallel::one_device(problem.model(3)->shape()), pass);
    if (!plan.ok()) return "does not verify: " + plan.status().message();
    try {
      values_by(*plan, problem, way);
    } catch (const Error& e) {
      return e.status().message();
    }
    return std::string();
  };
  using plan::ActionKind;
  const auto with = [](const parallel::Pass& pass, const std::function<void(StepPlan&)>& change) {
    return [=](const StepPlan& in) -> Result<StepPlan> {
      STORMO_ASSIGN_OR_RETURN(StepPlan out, pass(in));
      change(out);
      return out;
    };
  };
  const auto split_update = [](StepPlan& p) {
    const auto update = std::ranges::find(p.actions, ActionKind::kUpdate, &Action::kind);
    Action first = *update;
    first.range.last = 1;
    update->range.first = 2;
    p.actions.insert(update, first);
  };
  EXPECT_EQ(
      refusal({.kind = Strategy::Kind::kFsdp, .stage = 3},
              with(parallel::sharded({.stage = 3, .ranks = 1}), split_update)),
      "action 28 (update 0-1: layer0.linear.weight .. layer0.linear.bias): shards are updated "
      "all at once");
  EXPECT_EQ(
      refusal({.kind = Strategy::Kind::kDdp}, with(parallel::host_shared(1, 1), split_update)),
      "action 5 (update 0-1: layer0.linear.weight .. layer0.linear.bias): one copy per host "
      "is updated as a whole");
  EXPECT_EQ(
      refusal(
          {.kind = Strategy::Kind::kDdp},
          with(parallel::mirrored(1),
               [](StepPlan& p) {
                 std::ranges::find(p.actions, ActionKind::kAllReduce, &Action::kind)->range.last =
                     1;
               })),
      "replicas average each gradient once; the plan reduces 2 of 6");
}

INSTANTIATE_TEST_SUITE_P(EveryWay, Trace, testing::ValuesIn(ways()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stormo::train
