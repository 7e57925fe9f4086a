#include <stormo/train/loop/state_watch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/checkpoint/folder.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/run/trainer.h>

#include "tests/unit/train/flip.h"
#include "tests/unit/train/sharded_problem.h"
#include "tests/unit/train/toy.h"

namespace stormo::train {
namespace {

using test::flip;

using Parameters = Strategy::Parameters;

struct Warnings final : observe::RunObserver {
  void on_warning(const observe::WarningRecord& r) override { all.push_back(r); }
  std::vector<observe::WarningRecord> all;
};

template <class Value>
Value field(const observe::WarningRecord& warning, std::string_view name) {
  const auto found = std::ranges::find(warning.fields, name, [](const auto& f) { return f.first; });
  return found == warning.fields.end() ? Value() : std::get<Value>(found->second);
}

TrainerOptions options_of(const Strategy& strategy, std::int64_t steps) {
  TrainerOptions options;
  options.strategy = strategy;
  options.steps = steps;
  options.global_batch = 12;
  options.seed = 11;
  options.clip_norm = 0.5;
  options.gradients.overlap = false;  // one reduction in a step
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  return options;
}

/// What is wrong on one rank behind an update, and from then on.
using Spoil = std::function<void(FusedOptimizer&)>;
const std::vector<std::pair<std::string, Spoil>>& spoils() {
  static const std::vector<std::pair<std::string, Spoil>> all = {
      {"'first.bias'", [](auto& o) { flip(o.parameters()[1].tensor); }},
      {"'last.weight'", [](auto& o) { flip(o.parameters()[4].tensor, 3 * 64 * 8 - 1); }},
      {"'optimizer.exp_avg.middle.weight'", [](auto& o) { flip(o.values().slots[0][2], 4000); }},
      {"'optimizer.exp_avg_sq.first.weight'", [](auto& o) { flip(o.values().slots[1][0]); }},
      {"'optimizer.step.(each parameter)'",
       [](auto& o) {
         std::vector<std::int64_t> steps = o.steps();
         ++steps[3];
         o.set_steps(steps);
       }},
  };
  return all;
}

/// A store of replicas whose gradients are a function of the step, watched but not by a Trainer.
struct Watched {
  Watched(comm::Communicator& world, std::int64_t verify_state, WatchedJob job = {})
      : module(test::make_toy_module(3)),
        trainer(world, test::toy_task(module), data, {}, options),
        setup{.world = world,
              .task = test::toy_task(module),
              .train = data,
              .splits = {},
              .options = options,
              .plan = trainer.plan()},
        run((setup.verify_state = verify_state, setup.observer = &warnings, setup)),
        model(run) {
    throw_if_error(model.make_parameters());
    watch = StateWatch::create(run, model, std::move(job));
  }
  ~Watched() {
    model.pass_no_events();
    run.world.set_sink(nullptr);
  }
  FusedOptimizer& optimizer() { return dynamic_cast<FusedOptimizer&>(model.store().optimizer()); }
  void update(std::int64_t step) {
    for (const NamedParameter& p : optimizer().parameters()) {
      p.tensor.mutable_grad() = test::toy_numbers(p.tensor.sizes()) / static_cast<double>(step);
    }
    throw_if_error(optimizer().step(0.01));
  }
  Status look(std::int64_t step, bool everything = false) {
    run.state.step = step;
    std::vector<double> numbers = watch->look(everything);
    STORMO_RETURN_IF_ERROR(run.world.all_reduce(numbers, comm::ReduceOp::kSum));
    return watch->judge(numbers, step);
  }
  std::uint64_t hash() { return state_hash(named_state(*module), optimizer().state()); }

  std::shared_ptr<test::ToyModule> module;
  std::shared_ptr<data::Dataset> data = std::make_shared<test::ToyDataset>(96);
  TrainerOptions options =
      options_of({.kind = Strategy::Kind::kDdp, .parameters = Parameters::kReplicated}, 100);
  Trainer trainer;
  Warnings warnings;
  RunSetup setup;
  RunContext run;
  RunModel model;
  std::unique_ptr<StateWatch> watch;
};

/// The hash of the state after `steps` steps in which nothing goes wrong.
std::uint64_t right_hash(std::int64_t steps) {
  std::uint64_t out = 0;
  test::on_ranks(1, [&](comm::Communicator& world) {
    Watched watched(world, 0);
    for (std::int64_t step = 1; step <= steps; ++step) watched.update(step);
    out = watched.hash();
  });
  return out;
}

// A sweep of K, of what is wrong, and of the rank.
TEST(StateWatch, AWrongBitIsFoundWithinItsStepsAndPutRightBitwise) {
  constexpr std::int64_t kSteps = 30, kWrongAt = 4;
  const std::uint64_t right = right_hash(kSteps);
  for (const std::int64_t within : {1, 2, 5, 13}) {
    Rank wrong = 0;
    for (const auto& [where, spoil] : spoils()) {
      test::on_ranks(3, [&](comm::Communicator& world) {
        const std::string what =
            where + " on rank " + std::to_string(wrong) + ", within " + std::to_string(within);
        Watched watched(world, within);
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          watched.update(step);
          if (step == kWrongAt && world.rank() == wrong) spoil(watched.optimizer());
          const Status status = watched.look(step);
          ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
        }
        EXPECT_EQ(watched.hash(), right) << what;
        if (world.rank() != 0) return;
        ASSERT_EQ(watched.warnings.all.size(), 1u) << what;
        const observe::WarningRecord& warning = watched.warnings.all.front();
        EXPECT_EQ(warning.kind, "replica_mismatch");
        EXPECT_GE(warning.step, kWrongAt);
        EXPECT_LT(warning.step, kWrongAt + within) << what;
        if (warning.step == kWrongAt) {  // later it has spread to what follows from it
          EXPECT_NE(warning.message.find(where), std::string::npos) << what << warning.message;
        }
        EXPECT_NE(warning.message.find("rank " + std::to_string(wrong)), std::string::npos) << what;
        EXPECT_EQ(field<std::int64_t>(warning, "rank"), wrong) << what;
        EXPECT_EQ(field<std::int64_t>(warning, "right_rank"), wrong == 0 ? 1 : 0) << what;
        EXPECT_GE(field<std::int64_t>(warning, "places"), 1) << what;
        EXPECT_EQ(field<std::string>(warning, "host"), world.host()) << what;
        if (warning.step == kWrongAt) {
          EXPECT_EQ("'" + field<std::string>(warning, "tensor") + "'", where) << what;
        }
      });
      wrong = (wrong + 1) % 3;
    }
  }
}

TEST(StateWatch, ALookAtEverythingFindsItAtOnce) {
  test::on_ranks(3, [](comm::Communicator& world) {
    Watched watched(world, 50);
    for (std::int64_t step = 1; step <= 3; ++step) {
      watched.update(step);
      if (step == 2 && world.rank() == 2) flip(watched.optimizer().values().slots[1][5]);
      EXPECT_TRUE(watched.look(step, /*everything=*/step == 3).ok());
    }
    if (world.rank() != 0) return;
    ASSERT_EQ(watched.warnings.all.size(), 1u);
    EXPECT_EQ(watched.warnings.all.front().step, 3);
  });
}

TEST(StateWatch, TheThirdTimeOfOneRankEndsTheRun) {
  test::on_ranks(3, [](comm::Communicator& world) {
    Watched watched(world, 1);
    for (std::int64_t step = 1; step <= 3; ++step) {
      watched.update(step);
      if (world.rank() == 1) flip(watched.optimizer().parameters()[0].tensor);
      const Status status = watched.look(step);
      EXPECT_EQ(status.ok(), step < 3) << status.to_string();
      if (step < 3) continue;
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_NE(status.message().find("3 times within 1000 steps"), std::string::npos);
      EXPECT_NE(status.message().find("rank 1 (host"), std::string::npos) << status.message();
    }
  });
}

TEST(StateWatch, AJobGoesOnWithoutARankThatIsWrongAgainAndAgain) {
  const std::uint64_t right = right_hash(3);
  test::on_ranks(3, [right](comm::Communicator& world) {
    protocol::FaultyRanks faulty;
    faulty.note("b", 0);  // in an epoch before
    std::vector<Rank> left_out;
    Watched watched(world, 1,
                    {.faulty = &faulty,
                     .name = [](Rank rank) { return std::string(1, "abc"[rank]); },
                     .leave_out = [&](Rank rank) { left_out.push_back(rank); }});
    for (std::int64_t step = 1; step <= 3; ++step) {
      watched.update(step);
      if (world.rank() == 1) flip(watched.optimizer().values().slots[0][0]);
      const Status status = watched.look(step);
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(left_out.size(), step < 2 ? 0u : static_cast<std::size_t>(step - 1));
    }
    EXPECT_EQ(left_out.front(), 1);
    EXPECT_EQ(watched.hash(), right) << "what it holds is right all the same";
  });
}

TEST(StateWatch, WhoHasNotGotTheStateYetIsNotCompared) {
  const std::uint64_t right_2 = right_hash(2), right_3 = right_hash(3);
  test::on_ranks(4, [=](comm::Communicator& world) {
    Watched watched(world, 1);
    watched.watch->leave_out({false, false, false, true});
    for (std::int64_t step = 1; step <= 3; ++step) {
      watched.update(step);
      const bool is_newcomer = step == 1 && world.rank() == 3;
      if (is_newcomer) flip(watched.optimizer().parameters()[0].tensor);
      if (step == 2 && world.rank() == 1) flip(watched.optimizer().parameters()[2].tensor);
      if (step == 3) watched.watch->leave_out({});
      const Status status = watched.look(step);
      ASSERT_TRUE(status.ok()) << status.to_string();
      const bool is_right = step != 2 || watched.hash() == right_2;
      EXPECT_EQ(is_right, step != 2 || world.rank() != 3);
    }
    EXPECT_EQ(watched.hash(), right_3);
    if (world.rank() != 0) return;
    ASSERT_EQ(watched.warnings.all.size(), 2u);
    EXPECT_EQ(field<std::int64_t>(watched.warnings.all[0], "rank"), 1);
    EXPECT_EQ(field<std::int64_t>(watched.warnings.all[1], "rank"), 3);
  });
}

TEST(StateWatch, ItIsOffForOneRankAndWhereItIsNotWanted) {
  test::on_ranks(1, [](comm::Communicator& world) {
    EXPECT_EQ(Watched(world, 0).watch, nullptr);
    const Watched wanted(world, 3);
    EXPECT_EQ(wanted.watch, nullptr);
    ASSERT_EQ(wanted.warnings.all.size(), 1u);
    EXPECT_EQ(wanted.warnings.all.front().kind, "not_verified");
  });
  test::on_ranks(2, [](comm::Communicator& world) {
    EXPECT_EQ(Watched(world, 0).watch, nullptr);
    EXPECT_NE(Watched(world, protocol::RollingCheck::kAutomatic).watch, nullptr);
  });
}

std::vector<int> parts(const Strategy& strategy, const std::vector<int>& hosts) {
  const plan::ModelShape model{
      .segments = {{.name = "s", .parameters = {{"s.weight", 8}}, .borrowed = {}}}};
  return parts_of_state(plan_for(strategy, model, {.ranks_per_host = hosts}).take_or_throw());
}

TEST(StateWatch, RanksOfOnePartHoldTheSame) {
  const Strategy shared{.kind = Strategy::Kind::kDdp, .parameters = Parameters::kHostShared};
  Strategy shards{.kind = Strategy::Kind::kFsdp, .parameters = Parameters::kSharded, .stage = 3};
  EXPECT_EQ(parts({.kind = Strategy::Kind::kDdp, .parameters = Parameters::kReplicated}, {2, 2}),
            (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(parts(shared, {2, 2}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_TRUE(parts(shared, {4}).empty()) << "one copy";
  EXPECT_TRUE(parts(shards, {2, 2}).empty()) << "nobody holds what another one does";
  shards.hybrid = true;
  EXPECT_EQ(parts(shards, {2, 2}), (std::vector<int>{0, 1, 0, 1}));
  shards.stage = 1;
  EXPECT_EQ(parts(shards, {2, 2, 2}), (std::vector<int>{0, 1, 0, 1, 0, 1}));
}

TEST(StateWatch, RanksOfAStageHoldTheSameWhoeverIsThere) {
  plan::ModelShape model;
  for (const std::string name : {"a", "b"}) {
    model.segments.push_back({.name = name, .parameters = {{name + ".weight", 8}}, .borrowed = {}});
  }
  const plan::StepPlan plan =
      parallel::plan_for({.kind = Strategy::Kind::kDdp, .pipeline = 2}, model,
                         {.ranks_per_host = {6}}, {.micro_batches = 2})
          .take_or_throw();
  const auto of = [&](const std::vector<Rank>& numbers) {
    return parts_of_state(plan, MeshRanks{numbers, std::vector<bool>(numbers.size(), true)});
  };
  EXPECT_EQ(parts_of_state(plan), (std::vector<int>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(of({3, 5, 2, 0}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_TRUE(of({3, 0}).empty()) << "one of each stage";
}

/// A run of the Trainer; `spoil` is called on each rank behind each of its actions.
struct TrainerCase {
  int ranks = 3;
  TrainerOptions options =
      options_of({.kind = Strategy::Kind::kDdp, .parameters = Parameters::kReplicated}, 12);
  std::int64_t verify_state = 1;
  std::function<void(Rank, const plan::Action&, std::int64_t updates, test::ToyModule&)> spoil = {};
};
struct TrainerOutcome {
  std::vector<Status> statuses;
  std::string hash;  // of rank 0
  std::vector<observe::WarningRecord> warnings;
};

TrainerOutcome train(const TrainerCase& wanted) {
  TrainerOutcome out;
  out.statuses.resize(static_cast<std::size_t>(wanted.ranks));
  const auto data = std::make_shared<test::ToyDataset>(96);
  test::on_ranks(wanted.ranks, [&](comm::Communicator& world) {
    const auto module = test::make_toy_module(3);
    Trainer trainer(world, test::toy_task(module), data, {}, wanted.options);
    trainer.verify_state(wanted.verify_state);
    Warnings warnings;
    trainer.set_observer(&warnings);
    std::int64_t updates = 0;
    trainer.on_action([&](const plan::Action& action) {
      if (makes(action, plan::Value::kUpdated)) ++updates;
      if (wanted.spoil) wanted.spoil(world.rank(), action, updates, *module);
    });
    const Result<observe::EndRecord> end = trainer.run();
    out.statuses[static_cast<std::size_t>(world.rank())] = end.status();
    if (world.rank() != 0) return;
    if (end.ok()) out.hash = end->weights_hash;
    out.warnings = warnings.all;
  });
  return out;
}

bool reduces(const plan::Action& a) {
  return places(a, plan::Value::kGradients, plan::Placement::kReplicate);
}

// Each flip ends where nothing went wrong, bit for bit: it was mended before it was used again.
TEST(StateWatch, TheTrainerMendsAFlippedWeightAndAFlippedReduction) {
  const std::string right = train({.verify_state = 0}).hash;
  ASSERT_FALSE(right.empty());
  const TrainerOutcome clean = train({});
  EXPECT_EQ(clean.hash, right);
  EXPECT_TRUE(clean.warnings.empty());
  for (const bool in_reduction : {false, true}) {
    for (const std::int64_t within : {1, 4}) {
      int flips = 0;
      const TrainerOutcome outcome =
          train({.verify_state = within,
                 .spoil = [&](Rank rank, const plan::Action& a, std::int64_t updates,
                              test::ToyModule& module) {
                   if (rank != 1 || updates != 5) return;
                   if (in_reduction ? !reduces(a) : !makes(a, plan::Value::kUpdated)) return;
                   ++flips;
                   const torch::Tensor weight = module.last->weight;
                   flip(in_reduction ? weight.grad() : weight, 6);
                 }});
      EXPECT_EQ(flips, 1);
      for (const Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status.to_string();
      ASSERT_EQ(outcome.warnings.size(), 1u);
      const std::int64_t wrong_at = in_reduction ? 6 : 5;
      EXPECT_GE(outcome.warnings.front().step, wrong_at);
      EXPECT_LT(outcome.warnings.front().step, wrong_at + within);
      if (within == 1) {
        EXPECT_EQ(outcome.hash, right);
      }
    }
  }
}

// With two replicas nobody knows which is right.
TEST(StateWatch, OfTwoReplicasNothingWrongIsSaved) {
  const std::string folder = testing::TempDir() + "state_watch_" + std::to_string(getpid());
  TrainerCase two{.ranks = 2};
  two.options.checkpoint.directory = folder;
  two.options.checkpoint.every = 2;
  two.options.checkpoint.asynchronous = false;
  two.verify_state = 100;
  two.spoil = [](Rank rank, const plan::Action& a, std::int64_t updates, test::ToyModule& module) {
    if (rank == 0 && makes(a, plan::Value::kUpdated) && updates == 5) flip(module.first->weight);
  };
  const TrainerOutcome outcome = train(two);
  for (const Status& status : outcome.statuses) {
    EXPECT_EQ(status.code(), Code::kMismatch);
    for (const char* part : {"'first.weight'", "no majority", "step 6", "--resume"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  EXPECT_EQ(checkpoint::newest_checkpoint(folder).take_or_throw(),
            checkpoint::checkpoint_path(folder, 4));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stormo::train
