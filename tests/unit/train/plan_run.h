#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/model/chain.h>
#include <stormo/model/gpt.h>
#include <stormo/model/loss.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/project.h>
#include <stormo/plan/step_plan.h>
#include <stormo/tensor/host_staging.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/world/axis_groups.h>

#include "tests/unit/train/sharded_problem.h"

// Training a small chain by a step plan, on ranks that are threads.
namespace stormo::test {

/// The ranks of each host, of those ranks that are members of a group. Ranks are numbered host by
/// host.
inline std::vector<int> hosts_of(const std::vector<Rank>& members, const std::vector<int>& hosts) {
  std::vector<int> out;
  for (Rank first = 0; const int ranks : hosts) {
    const auto here =
        std::ranges::count_if(members, [&](Rank r) { return first <= r && r < first + ranks; });
    if (here > 0) out.push_back(static_cast<int>(here));
    first += ranks;
  }
  return out;
}

/// For each rank its groups over the axes of which a store needs one: threads have no launcher to
/// connect subgroups with.
inline std::vector<train::AxisGroups::Groups> groups_of(const plan::StepPlan& plan,
                                                        const std::vector<int>& hosts) {
  const plan::Mesh& mesh = plan.mesh;
  std::vector<train::AxisGroups::Groups> out(static_cast<std::size_t>(mesh.size()));
  std::vector<std::vector<std::string>> wanted;
  for (const plan::Axis& axis : mesh.axes) wanted.push_back({axis.name});
  wanted.push_back(model_axes(mesh));
  wanted.push_back(data_axes(mesh));
  wanted.push_back(place_axes(mesh));
  if (mesh.find(parallel::kShardAxis) >= 0) {
    wanted.push_back(model_axes(mesh));  // norms of shards
    wanted.back().emplace_back(parallel::kShardAxis);
    wanted.push_back({parallel::kShardAxis});  // norms of shards of slices
    if (mesh.find(plan::kTensorAxis) >= 0) wanted.back().emplace_back(plan::kTensorAxis);
    wanted.push_back(data_axes(mesh));  // who has the same shard
    std::erase(wanted.back(), parallel::kShardAxis);
  }
  std::vector<train::AxisGroups::Key> keys = train::AxisGroups::of_tied(plan);
  for (const std::vector<std::string>& over : wanted) {
    keys.push_back({train::AxisGroups::key_of(mesh, over).take_or_throw(), {}});
  }
  for (const train::AxisGroups::Key& key : keys) {
    for (Rank first = 0; first < mesh.size(); ++first) {
      const std::vector<Rank> members = train::AxisGroups::members(mesh, first, key);
      const bool known = out[static_cast<std::size_t>(first)].contains(key);
      if (std::ssize(members) == mesh.size() || members.front() != first || known) continue;
      Group group = comm::make_hosts(hosts_of(members, hosts));
      for (std::size_t i = 0; i < members.size(); ++i) {
        out[static_cast<std::size_t>(members[i])][key] = std::move(group[i]);
      }
    }
  }
  return out;
}

/// Of a model whose output may be in parts; else 0.
inline std::int64_t classes_of(const model::Chain& chain) {
  const auto* gpt = dynamic_cast<const model::Gpt*>(&chain);
  return gpt == nullptr ? 0 : gpt->options().vocabulary;
}

/// Where the parameters of a rank are.
using DeviceOf = std::function<torch::Device(Rank)>;

/// What a run is; equal on all ranks.
struct PlanRun {
  plan::StepPlan plan;
  std::vector<int> hosts;  ///< ranks of each
  Problem problem;
  std::vector<Batch> batches;  ///< by step, of all ranks together
  train::TrainerOptions options;
  bool half = false;     ///< computes in float16
  DeviceOf device = {};  ///< empty: on the CPU

  int ranks() const { return plan.mesh.size(); }
};

/// One rank of a run: what it trains, its store and its Runner. The latter two are made when they
/// are needed first.
class PlanRank {
 public:
  PlanRank(const PlanRun& run_, const train::AxisGroups& groups_,
           std::shared_ptr<model::Chain> chain_)
      : run(run_), groups(groups_), chain(std::move(chain_)), lanes_(rank()) {
    task.module = chain;
    task.forward = [this](const torch::Tensor& x) { return chain->forward(x); };
    task.loss = model::cross_entropy;
    task.split_loss = [classes = classes_of(*chain)](const auto& part, const auto& target,
                                                     const auto& split_over) {
      return model::split_cross_entropy(part, target, classes, &split_over);
    };
    task.shape = chain->shape();
    if (run.half) task.autocast = torch::kHalf;
  }

  const PlanRun& run;
  const train::AxisGroups& groups;
  const std::shared_ptr<model::Chain> chain;
  train::Task task;
  std::vector<plan::Action> trace;  ///< what the Runner told, of all steps
  std::function<Result<data::Batch>()> load = [this] { return rows(); };
  std::function<void()> before_update = [] {};  ///< see RunnerParts
  train::DoneAction done = [](const auto&) {};  ///< besides `trace`
  train::MaterializeSegment bring = {};         ///< see make_store()
  std::size_t next = 0;                         ///< batch
  train::StepAt at = {};                        ///< of the next step

  Rank rank() const { return groups.rank(); }  ///< in the mesh
  void pass_events_to(Sink* sink) { lanes_.pass_to(sink); }
  train::ParameterStore& store() {
    if (!store_) store_ = train::make_store(run.plan, groups, chain, run.options, {}, bring);
    return *store_;
  }
  /// What Runner::create() says to `plan`; the store is that of the run's plan.
  Status start(const plan::StepPlan& plan) {
    if (plan.scaled_loss) {
      scaler_ = std::make_unique<train::GradScaler>(groups.world(), run.options.loss_scale);
    }
    auto runner =
        train::Runner::create(plan, rank(),
                              {.load = [this] { return load(); },
                               .task = task,
                               .store = store(),
                               .lanes = lanes_,
                               .before_update = [this] { before_update(); },
                               .scaler = scaler_.get(),
                               .clip_norm = run.options.clip_norm,
                               .global_samples = [this] { return run.batches[next - 1].x.size(0); },
                               .done =
                                   [this](const plan::Action& a) {
                                     trace.push_back(a);
                                     done(a);
                                   }});
    if (runner.ok()) runner_ = std::move(*runner);
    return runner.status();
  }
  train::Runner& runner() {
    if (!runner_) throw_if_error(start(run.plan));
    return *runner_;
  }
  Result<train::StepOutcome> try_step() { return runner().step(run.options.optimizer.lr, at); }
  void steps(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) try_step().take_or_throw();
  }
  /// A collective.
  Values values() {
    const auto readable = store().gather();
    return values_of(*chain);
  }
  /// The Runner and the store go; the module stays.
  void end() {
    runner_.reset();
    store_.reset();
  }

 private:
  data::Batch rows_of_shards(const Batch& all, const plan::Part& part) const {
    const plan::ShardRange own = plan::shards_of(run.plan.logical_shards, part.parts, part.index);
    std::int64_t before = 0, mine = 0;
    for (int s = 0; s < own.end; ++s) {
      (s < own.first ? before : mine) +=
          plan::samples_of_shard(all.x.size(0), run.plan.logical_shards, s);
    }
    const Batch rows = all.rows(before, mine);
    return {rows.x, rows.target};
  }
  Result<data::Batch> rows() {
    const Batch& all = run.batches[next++];
    const plan::Part part = data_part(run.plan.mesh, rank());
    const std::int64_t rows = all.x.size(0), n = part.parts, r = part.index;
    if (run.plan.logical_shards > 0) return rows_of_shards(all, part);
    const Batch mine = all.rows(rows * r / n, rows * (r + 1) / n - rows * r / n);
    return data::Batch{mine.x, mine.target};
  }

  train::LaneTimer lanes_;
  std::unique_ptr<train::ParameterStore> store_;
  std::unique_ptr<train::GradScaler> scaler_;
  std::unique_ptr<train::Runner> runner_;
};

/// Calls `body` for every rank of the run, each in a thread; see on_ranks().
inline void on_plan_ranks(const PlanRun& run, const std::function<void(PlanRank&)>& body) {
  Group group = comm::make_hosts(run.hosts);
  std::vector<std::shared_ptr<model::Chain>> models;
  for (std::size_t r = 0; r < group.size(); ++r) models.push_back(run.problem.model(3));
  std::vector<train::AxisGroups::Groups> axes = groups_of(run.plan, run.hosts);
  for (std::size_t r = 0; r < group.size() && run.device; ++r) {
    const torch::Device device = run.device(static_cast<Rank>(r));
    models[r]->to(device);
    const auto stage = [device](auto& ranks) {
      if (ranks) ranks = std::make_unique<tensor::HostStaging>(std::move(ranks), device);
    };
    stage(group[r]);
    for (auto& [key, ranks] : axes[r]) stage(ranks);
  }
  on_ranks(group, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const train::AxisGroups groups(world, run.plan.mesh, std::move(axes[r]));
    PlanRank rank(run, groups, models[r]);
    body(rank);
  });
}

/// What a rank has done and holds at the end.
struct PlanResult {
  std::vector<plan::Action> trace;
  std::vector<std::uint64_t> sent;  ///< to other hosts, by step
  std::vector<double> losses;       ///< sums over this rank's samples, by step
  Values values;
};

/// All steps of the run, by rank.
inline std::vector<PlanResult> train_by_plan(const PlanRun& run) {
  std::vector<PlanResult> out(static_cast<std::size_t>(run.ranks()));
  on_plan_ranks(run, [&](PlanRank& rank) {
    PlanResult& mine = out[static_cast<std::size_t>(rank.rank())];
    rank.runner();
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      const std::uint64_t before = rank.groups.bytes_sent();
      mine.losses.push_back(rank.try_step().take_or_throw().loss_sum);
      mine.sent.push_back(rank.groups.bytes_sent() - before);
    }
    mine.trace = std::move(rank.trace);
    mine.values = rank.values();
    throw_if_error(rank.groups.world().barrier());  // then nobody needs this rank's groups
  });
  return out;
}

inline std::string text_of(const std::vector<plan::Action>& actions) {
  std::string out;
  for (const plan::Action& a : actions) out += to_text(a) + "\n";
  return out;
}

/// The actions of one lane.
inline std::vector<plan::Action> lane(const std::vector<plan::Action>& actions, bool asynchronous) {
  std::vector<plan::Action> out;
  std::ranges::copy_if(actions, std::back_inserter(out),
                       [=](const plan::Action& a) { return a.asynchronous == asynchronous; });
  return out;
}

/// `trace` is `steps` times the actions of the plan. An asynchronous all_reduce of whole gradients
/// starts when these are there, so then each lane is compared for itself.
inline void expect_trace(const std::vector<plan::Action>& trace, const plan::StepPlan& plan,
                         std::size_t steps) {
  std::vector<plan::Action> expected;
  for (std::size_t i = 0; i < steps; ++i) {
    expected.insert(expected.end(), plan.actions.begin(), plan.actions.end());
  }
  const bool has_buckets = std::ranges::any_of(plan.actions, [&](const plan::Action& a) {
    return a.kind == plan::ActionKind::kAllReduce && a.asynchronous && plan.mesh.find("shard") < 0;
  });
  for (const bool asynchronous : {false, true}) {
    EXPECT_EQ(text_of(lane(trace, asynchronous)), text_of(lane(expected, asynchronous)))
        << plan.strategy;
  }
  if (has_buckets) return;
  EXPECT_EQ(text_of(trace), text_of(expected)) << plan.strategy;
}

/// Equal names, and values that are apart by at most `most`; 0 means to the bit.
inline void expect_near(const Values& a, const Values& b, double most, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, value] : a) {
    ASSERT_EQ(b.count(name), 1u) << what << ": " << name;
    const torch::Tensor& other = b.at(name);
    ASSERT_EQ(value.sizes(), other.sizes()) << what << ": " << name;
    if (most == 0) {
      EXPECT_TRUE(value.equal(other)) << what << ": " << name;
    } else if (value.numel() > 0) {
      EXPECT_LE((value - other).abs().max().item<double>(), most) << what << ": " << name;
    }
  }
}

}  // namespace stormo::test
