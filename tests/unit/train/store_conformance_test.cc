// What every ParameterStore owes, whatever it does with parameters in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_verify.h>
#include <stormo/parallel/bucket.h>
#include <stormo/parallel/gradient_scale.h>
#include <stormo/parallel/host_shared.h>
#include <stormo/parallel/micro_batches.h>
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline.h>
#include <stormo/parallel/recompute.h>
#include <stormo/parallel/sharded.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using parallel::Pass;
using plan::StepPlan;
using test::Batch;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using test::Values;

using Passes = std::vector<Pass>;
using Hosts = std::vector<int>;

/// A store, by the strategy that has it.
struct Layout {
  std::string name;
  std::function<Passes(int hosts, int local)> passes;
};

std::vector<Layout> layouts() {
  std::vector<Layout> out = {
      {"replicated",
       [](int hosts, int local) { return Passes{parallel::mirrored(hosts * local)}; }},
      {"host_shared",
       [](int hosts, int local) { return Passes{parallel::host_shared(hosts, local)}; }}};
  for (const int stage : {1, 2, 3}) {
    out.push_back({"sharded" + std::to_string(stage), [stage](int hosts, int local) {
                     return Passes{parallel::sharded({.stage = stage, .ranks = hosts * local})};
                   }});
  }
  out.push_back(
      {"hybrid", [](int hosts, int local) {
         return Passes{parallel::mirrored(hosts), parallel::sharded({.stage = 3, .ranks = local})};
       }});
  out.push_back({"staged", [](int hosts, int local) {
                   const int ranks = hosts * local;
                   if (ranks == 1) return Passes{};
                   Passes passes = {parallel::pipeline({.schedule = parallel::gpipe()})};
                   if (ranks > 2) passes.push_back(parallel::mirrored(ranks / 2));
                   return passes;
                 }});
  return out;
}

/// A store somewhere.
struct Place {
  Layout layout;
  Hosts hosts;
  int ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
  Passes passes() const { return layout.passes(static_cast<int>(hosts.size()), hosts.front()); }
};

std::ostream& operator<<(std::ostream& out, const Place& place) { return out << place.layout.name; }

/// The second of three layers is not trained.
Problem problem() { return test::with_frozen_segment(test::mlp_problem(), 1); }

StepPlan plan_of(const Passes& before, const Passes& passes) {
  return parallel::compose(
             parallel::compose(parallel::one_device(problem().model(3)->shape()), before)
                 .take_or_throw(),
             passes)
      .take_or_throw();
}

/// With four ranks and 3 rows one of them has none.
std::vector<Batch> batches() {
  std::vector<Batch> out = problem().batches(4, 13);
  out[1] = out[1].rows(0, 3);
  return out;
}

PlanRun run_of(const Place& place, const Passes& before = {}) {
  PlanRun run{.plan = plan_of(before, place.passes()),
              .hosts = place.hosts,
              .problem = problem(),
              .batches = batches(),
              .options = {}};
  // so large an epsilon that it divides by no small numbers
  run.options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01, .epsilon = 1e-2};
  run.options.strategy.hybrid = run.plan.mesh.find("dp") >= 0 && run.plan.mesh.find("shard") >= 0;
  return run;
}

constexpr double kRounding = 1e-12;  // sums in another order

/// Training in a loop without plans, stores or ranks.
struct Alone {
  explicit Alone(const PlanRun& run) : module(run.problem.model(3)) {
    const auto optimizer = make_optimizer(run.options.optimizer, trainable_parameters(*module));
    for (const Batch& batch : run.batches) {
      model::cross_entropy(module->forward(batch.x), batch.target).backward();
      norms.push_back(optimizer->gradient_norm().take_or_throw());
      throw_if_error(optimizer->step(run.options.optimizer.lr));
      optimizer->zero_grad();
      values.push_back(test::values_of(*module));
      Values now;
      for (const auto& [name, tensor] : optimizer->state()) now[name] = tensor.clone();
      states.push_back(std::move(now));
    }
  }
  std::shared_ptr<model::Chain> module;
  std::vector<double> norms;  // by step, as everything here
  std::vector<Values> values;
  std::vector<Values> states;  // of the optimizer
};

/// What a checkpoint takes from a rank. Of a whole() store rank 0's will do.
std::vector<TensorPiece> saved_by(PlanRank& rank) {
  ParameterStore& store = rank.store();
  std::vector<TensorPiece> out = store.pieces();
  if (store.whole()) {
    EXPECT_TRUE(out.empty()) << "every rank has all: there is nothing to put together";
    if (rank.rank() > 0) return {};
    Values all = store.optimizer().state();
    for (const NamedParameter& p : trainable_parameters(*rank.chain)) all[p.name] = p.tensor;
    for (const auto& [name, tensor] : all) {
      out.push_back({name, tensor.sizes().vec(), 0, tensor.numel(), tensor.detach().flatten()});
    }
  }
  for (TensorPiece& piece : out) piece.values = piece.values.detach().clone();
  return out;
}

/// The tensors that the pieces make up; each element has to be there once.
Values put_together(std::vector<TensorPiece> pieces) {
  std::ranges::sort(pieces, [](const TensorPiece& a, const TensorPiece& b) {
    return std::pair(a.name, a.begin) < std::pair(b.name, b.begin);
  });
  Values out;
  for (auto piece = pieces.begin(); piece != pieces.end();) {
    const std::string name = piece->name;
    const std::vector<std::int64_t> shape = piece->shape;
    std::vector<torch::Tensor> parts;
    std::int64_t end = 0;
    for (; piece != pieces.end() && piece->name == name; ++piece) {
      if (piece->begin == piece->end) continue;
      EXPECT_EQ(piece->shape, shape) << name;
      EXPECT_EQ(piece->begin, end) << name << ": a gap, or twice the same";
      EXPECT_EQ(piece->values.numel(), piece->end - piece->begin) << name;
      end = piece->end;
      parts.push_back(piece->values);
    }
    EXPECT_EQ(end, c10::multiply_integers(shape)) << name;
    out[name] = torch::cat(parts).view(shape);
  }
  return out;
}

/// Pieces of all ranks, in a run that goes on.
class Collected {
 public:
  void add(std::vector<TensorPiece> pieces) {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(pieces, std::back_inserter(pieces_));
  }
  Values all() { return put_together(pieces_); }

 private:
  std::mutex mutex_;
  std::vector<TensorPiece> pieces_;
};

class StoreConformance : public ::testing::TestWithParam<Place> {
 protected:
  const PlanRun run = run_of(GetParam());
};

TEST_P(StoreConformance, HoldsTheValuesThatItWasGiven) {
  const Values given = test::values_of(*run.problem.model(3));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    test::expect_near(rank.values(), given, 0, "before the first step");
  });
}

TEST_P(StoreConformance, TakesThePlansOfItsStrategy) {
  const Pass scaled = parallel::scale_loss(), clipped = parallel::clip_gradients();
  std::vector<StepPlan> plans = {run.plan};
  for (const Passes& before :
       {Passes{parallel::micro_batches(3), clipped}, Passes{scaled, clipped}}) {
    plans.push_back(plan_of(before, GetParam().passes()));
  }
  for (const Pass& after : {parallel::recompute(), parallel::bucket(100)}) {
    // a stage averages its gradients together
    if (GetParam().layout.name == "staged" && plans.size() == 4) break;
    plans.push_back(parallel::compose(run.plan, after).take_or_throw());
  }
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    for (const StepPlan& plan : plans) {
      const Status taken = rank.store().check(project(plan, rank.rank()));
      EXPECT_TRUE(taken.ok()) << taken.message() << "\n" << to_text(plan);
    }
  });
}

/// All but shards: ShardedStore::check() takes the mesh for granted.
TEST_P(StoreConformance, RefusesThePlansOfOtherStores) {
  std::vector<StepPlan> others = {parallel::one_device(run.plan.model)};
  for (const Layout& layout : layouts()) {
    // not on other ranks either
    for (const Hosts& hosts : {GetParam().hosts, Hosts{4, 4}}) {
      const StepPlan plan = plan_of({}, Place{layout, hosts}.passes());
      if (plan.mesh != run.plan.mesh) others.push_back(plan);
    }
  }
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    for (const StepPlan& plan : others) {
      const Status refused = rank.store().check(plan);
      EXPECT_EQ(refused.code(), Code::kBadPlan) << plan.strategy << ": " << refused.message();
      EXPECT_THAT(refused.message(), ::testing::HasSubstr("mesh"));
    }
  });
}

TEST_P(StoreConformance, TrainsAsOneProcess) {
  const Alone alone(run);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(run.batches.size());
    test::expect_near(rank.values(), alone.values.back(), kRounding, "after training");
  });
}

// And can be read between steps, as often as one likes.
TEST_P(StoreConformance, ReadsWholeValuesWithoutChangingThem) {
  const auto unread = test::train_by_plan(run);
  const torch::Tensor x = run.batches[0].x;
  const auto ranks = static_cast<std::size_t>(run.ranks());
  std::vector<std::vector<Values>> seen(ranks);
  std::vector<torch::Tensor> outputs(ranks);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank());
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      seen[r].push_back(rank.values());
      if (rank.store().always_readable()) {
        test::expect_near(test::values_of(*rank.chain), seen[r].back(), 0, "directly");
      }
      const std::uint64_t before = rank.groups.bytes_sent();
      rank.steps(1);
      EXPECT_EQ(rank.groups.bytes_sent() - before, unread[r].sent[i]) << "step " << i;
    }
    seen[r].push_back(rank.values());
    const auto readable = rank.store().readable();
    const torch::NoGradGuard no_grad;
    outputs[r] = rank.chain->forward(x);
  });
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < seen[0].size(); ++i) {
      test::expect_near(seen[r][i], seen[0][i], 0, "rank " + std::to_string(r));
    }
    EXPECT_TRUE(outputs[r].equal(outputs[0])) << "rank " << r;
    test::expect_near(seen[r].back(), unread[r].values, 0, "read, and not read");
  }
}

TEST_P(StoreConformance, SavesEveryTensorOnce) {
  const Alone alone(run);
  Collected saved;
  Values values;
  bool has_frozen = false;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(run.batches.size());
    saved.add(saved_by(rank));
    const Values mine = rank.values();
    if (rank.rank() == 0) {
      values = mine;
      has_frozen = !rank.store().always_readable();
    }
    // what is whole is the same on all ranks
    if (!rank.store().whole()) return;
    test::expect_near(rank.store().optimizer().state(), alone.states.back(), kRounding, "state");
  });
  Values parameters, state;
  for (const auto& [name, value] : saved.all()) {
    (name.starts_with("optimizer.") ? state : parameters)[name] = value;
  }
  for (const auto& p : alone.module->named_parameters()) {
    if (has_frozen || p.value().requires_grad()) continue;
    values.erase(p.key());
  }
  test::expect_near(parameters, values, 0, "parameters");
  test::expect_near(state, alone.states.back(), kRounding, "optimizer state");
}

TEST_P(StoreConformance, GoesOnFromAStateAsIfItHadNotEnded) {
  constexpr std::size_t kBefore = 2;
  Collected middle, end, continued;
  Values values;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(kBefore);
    middle.add(saved_by(rank));
    const Values at_save = rank.values();
    if (rank.rank() == 0) values = at_save;
    rank.steps(run.batches.size() - kBefore);
    end.add(saved_by(rank));
  });
  const Values state = middle.all();
  const ReadState read = [&](const std::string& name, std::int64_t first,
                             std::int64_t last) -> Result<torch::Tensor> {
    const auto found = state.find(name);
    return found == state.end() ? torch::Tensor() : found->second.flatten().slice(0, first, last);
  };
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : rank.chain->named_parameters()) p.value().copy_(values.at(p.key()));
    }
    ParameterStore& store = rank.store();
    Values of_optimizer;
    for (const auto& [name, value] : state) {
      if (name.starts_with("optimizer.")) of_optimizer[name] = value;
    }
    throw_if_error(store.whole() ? store.optimizer().load_state(of_optimizer)
                                 : store.load_state(read));
    rank.next = kBefore;
    rank.steps(run.batches.size() - kBefore);
    continued.add(saved_by(rank));
  });
  test::expect_near(continued.all(), end.all(), 0, "continued");
}

TEST_P(StoreConformance, LeavesItsValuesBehind) {
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(2);
    const Values last = rank.values();
    rank.store().keep_values();
    rank.end();
    test::expect_near(test::values_of(*rank.chain), last, 0, "without the store");
  });
}

TEST_P(StoreConformance, KnowsTheNormOfTheWholeGradient) {
  const Alone alone(run);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    std::vector<double> norms;
    rank.before_update = [&] { norms.push_back(rank.store().gradient_norm().take_or_throw()); };
    rank.steps(run.batches.size());
    ASSERT_EQ(norms.size(), alone.norms.size());
    for (std::size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], alone.norms[i], kRounding);
  });
}

TEST_P(StoreConformance, DropsTheGradientsAtTheEndOfAStep) {
  const auto gradients = [](PlanRank& rank) {
    return std::ranges::count_if(rank.chain->parameters(),
                                 [](const torch::Tensor& p) { return p.grad().defined(); });
  };
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    std::int64_t most = 0;
    rank.done = [&](const plan::Action& a) {
      if (a.kind == plan::ActionKind::kBackward) most = std::max(most, gradients(rank));
    };
    rank.steps(1);
    EXPECT_GT(most, 0);
    EXPECT_EQ(gradients(rank), 0);
    rank.store().zero_grad();  // once more is fine
    EXPECT_EQ(gradients(rank), 0);
  });
}

std::vector<Place> places(const std::vector<Layout>& of) {
  std::vector<Place> out;
  for (const Layout& layout : of) {
    for (const Hosts& hosts : {Hosts{1}, Hosts{2}, Hosts{2, 2}}) {
      if (layout.name == "staged" && hosts == Hosts{1}) continue;  // nothing to cut
      out.push_back({layout, hosts});
    }
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<Place>& test) {
  std::string name = test.param.layout.name + "_on";
  for (const int ranks : test.param.hosts) name += "_" + std::to_string(ranks);
  return name;
}

INSTANTIATE_TEST_SUITE_P(EveryStore, StoreConformance, ::testing::ValuesIn(places(layouts())),
                         name_of);
// --- what a store cannot do besides ------------------------------------------------------------

/// What check() says to the plan of the passes, after `change`.
std::string refusal(const Place& place, const std::function<void(StepPlan&)>& change) {
  const PlanRun run = run_of(place);
  StepPlan changed = run.plan;
  change(changed);
  const Status sound = analysis::verify(changed);
  if (!sound.ok()) return "does not verify: " + sound.message();
  std::string why;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const Status status = rank.start(changed);
    EXPECT_EQ(status.ok() ? Code::kBadPlan : status.code(), Code::kBadPlan);
    if (rank.rank() == 0) why = status.message();
  });
  return why;
}

Place place_of(const std::string& name, const Hosts& hosts) {
  const std::vector<Layout> all = layouts();
  return {*std::ranges::find(all, name, &Layout::name), hosts};
}

plan::Action& first(StepPlan& p, plan::ActionKind kind) {
  return *std::ranges::find(p.actions, kind, &plan::Action::kind);
}

void split_update(StepPlan& p) {
  const auto update = std::ranges::find(p.actions, plan::ActionKind::kUpdate, &plan::Action::kind);
  plan::Action part = *update;
  part.range.last = 1;
  update->range.first = 2;
  p.actions.insert(update, part);
}

TEST(StoreRefusals, NameTheActionThatItCannotDo) {
  EXPECT_THAT(refusal(place_of("sharded3", {1}), split_update),
              ::testing::HasSubstr(" (update 0-1: layer0.linear.weight .. layer0.linear.bias): "
                                   "shards are updated all at once"));
  EXPECT_EQ(refusal(place_of("host_shared", {1}), split_update),
            "action 5 (update 0-1: layer0.linear.weight .. layer0.linear.bias): one copy per host "
            "is updated as a whole");
  EXPECT_EQ(refusal(place_of("replicated", {1}),
                    [](StepPlan& p) { first(p, plan::ActionKind::kAllReduce).range.last = 1; }),
            "replicas average each gradient once; the plan reduces 2 of 4");
}

// A single rank has nobody to share with, so that verify() misses nothing.
TEST(StoreRefusals, OneCopyPerHostNeedsItsBarriers) {
  for (const auto kind : {plan::ActionKind::kShareGradients, plan::ActionKind::kShareParameters}) {
    EXPECT_EQ(
        refusal(place_of("host_shared", {1}),
                [kind](StepPlan& p) {
                  std::erase_if(p.actions, [kind](const auto& a) { return a.kind == kind; });
                }),
        "one copy per host takes share_gradients of every gradient once, and share_parameters");
  }
}

TEST(StoreRefusals, OneCopyPerHostIsNoReplica) {
  EXPECT_EQ(refusal(place_of("host_shared", {2, 2}),
                    [](StepPlan& p) {
                      p.parameters = p.optimizer_state = {plan::Placement::kReplicate,
                                                          plan::Placement::kReplicate};
                      std::erase_if(p.actions, [](const auto& a) {
                        return a.kind == plan::ActionKind::kShareParameters;
                      });
                    }),
            "there is one copy per host: state parameters shared over host");
}

}  // namespace
}  // namespace stormo::train
