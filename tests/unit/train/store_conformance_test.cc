// What every ParameterStore owes, whatever it does with parameters in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/step/layout.h>

#include "tests/unit/train/store_places.h"

namespace stormo::train {
namespace {

using parallel::Pass;
using plan::StepPlan;
using test::Batch;
using test::Hosts;
using test::Layout;
using test::layouts;
using test::Passes;
using test::Place;
using test::plan_of;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using test::run_of;
using test::Values;

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

// Of a model without values, segment by segment: each rank keeps its part, and the rest has no
// memory. A store whose ranks have the whole is made of a model with values.
TEST_P(StoreConformance, BringsTheValuesOfItsPartsSegmentBySegment) {
  const auto trained = test::train_by_plan(run);
  PlanRun later = run;
  const bool parts = has_parts(run.plan);
  later.problem.build = [build = run.problem.build, parts] {
    std::optional<model::ValuesLater> scope;
    if (parts) scope.emplace();
    return build();
  };
  test::on_plan_ranks(later, [&](PlanRank& rank) {
    comm::Communicator& world = rank.groups.world();
    std::size_t next = 0;
    const auto bring = [&](std::size_t s) {
      EXPECT_EQ(s, next++);
      for (std::size_t before = 0; before < s; ++before) {
        const bool is_elsewhere =
            run.plan.model.segments[before].stage != stage_of(run.plan.mesh, rank.rank());
        const bool is_shard = run.plan.mesh.find("shard") >= 0;
        if (!is_elsewhere && !is_shard) continue;
        for (const torch::Tensor& p : rank.chain->segments()[before]->parameters()) {
          EXPECT_FALSE(tensor::has_memory(p)) << "segment " << before;
        }
      }
      world.rank() == 0 ? rank.chain->make_values(s) : rank.chain->give_memory(s);
      throw_if_error(broadcast_values(world, named_state(*rank.chain->segments()[s])));
    };
    if (parts) rank.bring = bring;
    rank.steps(run.batches.size());
    EXPECT_EQ(next, parts ? rank.chain->segments().size() : 0);
    test::expect_near(rank.values(), trained[static_cast<std::size_t>(rank.rank())].values, 0, "");
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
      const Status taken = check_layout(project(plan, rank.rank()), rank.store());
      EXPECT_TRUE(taken.ok()) << taken.message() << "\n" << to_text(plan);
    }
  });
}

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
      const Status refused = check_layout(plan, rank.store());
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
    const auto readable = rank.store().gather();
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

// One segment at a time: its parameters are whole, and it computes what it computes in the whole.
TEST_P(StoreConformance, ShowsSegmentsWithoutChangingThem) {
  const auto unread = test::train_by_plan(run);
  const torch::Tensor x = run.batches[0].x;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const torch::NoGradGuard no_grad;
    const auto look = [&] {
      const auto whole = rank.values();
      torch::Tensor y = x;
      for (int s = 0; const auto& segment : rank.chain->segments()) {
        const auto readable = rank.store().gather_segments({s, s});
        for (const auto& p : segment->named_parameters()) {
          const std::string name = run.plan.model.segments[static_cast<std::size_t>(s)].name;
          EXPECT_TRUE(p.value().equal(whole.at(name + "." + p.key()))) << name << "." << p.key();
        }
        y = segment->forward(y);
        ++s;
      }
      const auto readable = rank.store().gather();
      EXPECT_TRUE(rank.chain->forward(x).equal(y));
    };
    look();
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      const std::uint64_t before = rank.groups.bytes_sent();
      {
        const torch::AutoGradMode grad(true);
        rank.steps(1);
      }
      EXPECT_EQ(rank.groups.bytes_sent() - before,
                unread[static_cast<std::size_t>(rank.rank())].sent[i])
          << "step " << i;
      look();
    }
    test::expect_near(rank.values(), unread[static_cast<std::size_t>(rank.rank())].values, 0, "");
  });
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

}  // namespace
}  // namespace stormo::train
