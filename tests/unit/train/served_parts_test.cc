// Workers of parameter servers that are cut into stages and slices: each part exchanges with
// servers of its own, and all together train as one process. Server processes: tests/multiproc.
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/server/process/shard_server.h>
#include <stormo/train/worker/rank_session.h>

#include "tests/long.h"
#include "tests/unit/train/run_of_one_process.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using Policy = protocol::PolicyOptions::Kind;
using test::Batch;
using test::PlanRun;
using test::Problem;
using testing::HasSubstr;

constexpr int kSteps = 20;

/// Servers in threads, and the terms that each got.
class Servers {
 public:
  explicit Servers(int count) {
    for (int s = 0; s < count; ++s) {
      servers_.push_back(server::ShardServer::listen({.address = {"127.0.0.1", 0}, .on_event = {}})
                             .take_or_throw());
    }
    for (const auto& server : servers_) {
      threads_.emplace_back([&server] {
        const Status served = server->serve(-1);
        EXPECT_TRUE(served.ok()) << served.to_string();
      });
    }
  }
  ~Servers() {
    for (std::thread& t : threads_) t.join();
  }
  std::vector<transport::HostPort> of_part(int rank, int ranks) const {
    std::vector<transport::HostPort> out;
    for (std::size_t s = static_cast<std::size_t>(rank); s < servers_.size();
         s += static_cast<std::size_t>(ranks)) {
      out.push_back(servers_[s]->address());
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<server::ShardServer>> servers_;
  std::vector<std::thread> threads_;
};

/// A run of `workers` workers, each of the ranks of the way.
struct Served {
  test::CutWay way;
  Problem problem;
  int workers = 1, servers = 2;
  Policy policy = Policy::kSync;
  bool sends = false;  ///< as to servers on other hosts

  /// Of each worker the plan has its own ranks only.
  PlanRun run(const std::vector<Batch>& batches) const {
    PlanRun out = test::sgd_run(way, problem, batches);
    out.options.strategy = way.strategy;
    out.options.servers.policy.kind = policy;
    return out;
  }
};

test::CutWay slices(int stages, bool sequence_parallel, const parallel::StepOptions& step = {}) {
  return {.name = "slices",
          .hosts = {2 * stages},
          .strategy = {.kind = Strategy::Kind::kParameterServer,
                       .pipeline = stages,
                       .tensor = 2,
                       .sequence_parallel = sequence_parallel},
          .step = step};
}

test::CutWay cut(int stages, const parallel::StepOptions& step = {},
                 std::string schedule = "1f1b") {
  return {.name = schedule,
          .hosts = {stages},
          .strategy = {.kind = Strategy::Kind::kParameterServer,
                       .pipeline = stages,
                       .schedule = std::move(schedule)},
          .step = step};
}

struct RankResult {
  test::Values values;
  std::vector<plan::Action> trace;
  std::vector<double> losses;
  std::vector<std::uint64_t> sent;
  std::set<std::string> pulled;  ///< names of what its servers have
};

/// One rank of one worker, from the first to the last step. `chain`: of this rank.
void train_rank(const Served& served, const PlanRun& all, const Servers& servers, int worker,
                comm::Communicator& world, const std::shared_ptr<model::Chain>& chain,
                AxisGroups::Groups axes, RankResult& result) {
  auto own = server::WorkerSession::connect({.servers = servers.of_part(world.rank(), world.size()),
                                             .worker = worker,
                                             .workers = served.workers,
                                             .share_memory = !served.sends,
                                             .on_event = {}},
                                            Deadline::after(std::chrono::seconds(20)))
                 .take_or_throw();
  const auto session = std::make_shared<RankSession>(
      RankSession::Place{.worker = worker, .workers = served.workers, .rank = world.rank()},
      std::move(own));
  session->use(world);
  PlanRun mine = all;
  mine.options.session = session;
  const AxisGroups groups(world, mine.plan.mesh, std::move(axes));
  test::PlanRank rank(mine, groups, chain);
  rank.load = [&]() -> Result<data::Batch> {
    const Batch& batch = mine.batches[rank.next++];
    const std::int64_t rows = batch.x.size(0), begin = rows * worker / served.workers;
    const Batch part = batch.rows(begin, rows * (worker + 1) / served.workers - begin);
    return data::Batch{part.x, part.target};
  };
  rank.store();
  if (session->opens()) {
    throw_if_error(session->ledger().deal({.steps = kSteps}));
    throw_if_error(session->open());
  }
  throw_if_error(rank.store().served()->join());
  rank.runner();
  throw_if_error(world.barrier());
  const std::uint64_t idle = groups.bytes_sent();
  throw_if_error(world.barrier());
  const std::uint64_t of_barrier = groups.bytes_sent() - idle;
  for (int i = 0; i < kSteps; ++i) {
    const std::uint64_t before = groups.bytes_sent() + of_barrier;
    result.losses.push_back(rank.try_step().take_or_throw().loss_sum);
    throw_if_error(world.barrier());  // then all that was sent has arrived
    result.sent.push_back(groups.bytes_sent() - before);
  }
  result.trace = rank.trace;
  throw_if_error(rank.store().served()->leave());
  throw_if_error(session->ledger().leave());
  // others may still push: the first worker looks last
  while (worker == 0 && session->ledger().look().take_or_throw().others > 0) {
    throw_if_error(session->ledger().wait(Deadline::after(std::chrono::milliseconds(100))));
  }
  result.values = rank.values();
  for (const NamedParameter& p :
       dynamic_cast<FusedOptimizer&>(rank.store().optimizer()).parameters()) {
    result.pulled.insert(p.name);
  }
  rank.store().keep_values();
  rank.end();
  throw_if_error(session->finish());
}

/// By worker, and then by rank.
std::vector<std::vector<RankResult>> train(const Served& served, const PlanRun& all) {
  const auto ranks = static_cast<std::size_t>(ranks_of_worker(served.way.strategy));
  std::vector<std::vector<RankResult>> out(static_cast<std::size_t>(served.workers));
  std::vector<std::shared_ptr<model::Chain>> chains;  // their values come from one generator
  for (std::size_t i = 0; i < out.size() * ranks; ++i) chains.push_back(served.problem.model(3));
  const Servers servers(served.servers);
  std::vector<std::thread> workers;
  for (std::size_t w = 0; w < out.size(); ++w) {
    out[w].resize(ranks);
    workers.emplace_back([&, w] {
      test::Group group = comm::make_hosts(served.way.hosts);
      std::vector<AxisGroups::Groups> axes = test::groups_of(all.plan, served.way.hosts);
      test::on_ranks(group, [&](comm::Communicator& world) {
        const auto r = static_cast<std::size_t>(world.rank());
        train_rank(served, all, servers, static_cast<int>(w), world, chains[w * ranks + r],
                   std::move(axes[r]), out[w][r]);
      });
    });
  }
  for (std::thread& t : workers) t.join();
  return out;
}

/// The run is that of one process with the batches of all workers. Each stage pulls and pushes its
/// own parameters, and sends what the plan predicts.
void expect_one_process(const Served& served) {
  const std::vector<Batch> batches = served.problem.batches(kSteps, 12);
  const PlanRun all = served.run(batches);
  const auto results = train(served, all);
  test::CutWay one = served.way;
  one.hosts = {1};
  one.strategy = {};
  const auto reference = test::train_by_plan(test::sgd_run(one, served.problem, batches));
  analysis::StepSizes sizes;
  sizes.samples = 12 / served.workers / served.way.step.micro_batches;
  sizes.outputs = test::output_bytes(served.problem, sizes.samples);
  const analysis::StepCost cost = test::predicted_cost(all, sizes);
  EXPECT_EQ(cost.total().between_hosts > 0, served.way.hosts.size() > 1);
  std::vector<double> losses(kSteps);
  for (const std::vector<RankResult>& worker : results) {
    std::map<std::string, int> pulled;  // by how many ranks
    for (std::size_t r = 0; r < worker.size(); ++r) {
      test::expect_trace(worker[r].trace, project(all.plan, static_cast<Rank>(r)), kSteps);
      EXPECT_EQ(worker[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
          << served.problem.name << ", rank " << r;
      for (const std::string& name : worker[r].pulled) ++pulled[name];
      for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += worker[r].losses[i];
    }
    for (const plan::ParameterShape* p : flatten(all.plan.model)) {
      const int parts = p->split.units > 0 ? served.way.strategy.tensor : 1;
      EXPECT_EQ(pulled[p->name], p->trainable ? parts : 0) << p->name;
    }
  }
  // the last one to look sees all pushes
  for (const RankResult& rank : results[0]) {
    test::expect_near(rank.values, reference[0].values, 1e-10, served.problem.name);
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-10) << served.problem.name << " step " << i;
  }
}

std::vector<Problem> problems() {
  return {test::mlp_problem(), test::gpt_problem(true), test::gpt_problem(false),
          test::with_frozen_segment(test::gpt_problem(false), 1)};
}

TEST(ServedParts, OfOneWorkerTrainAsOneProcess) {
  for (const Problem& problem : problems()) {
    expect_one_process({.way = cut(2, {.micro_batches = 2}), .problem = problem});
    expect_one_process({.way = cut(2, {.micro_batches = 3, .clip = true, .recompute = true}),
                        .problem = problem,
                        .servers = 3,
                        .sends = true});
  }
}

TEST(ServedParts, OfSeveralWorkersThatWaitTrainAsOneProcess) {
  for (const Problem& problem : problems()) {
    expect_one_process(
        {.way = cut(2, {.micro_batches = 2}), .problem = problem, .workers = 2, .servers = 4});
  }
  expect_one_process({.way = cut(3, {.micro_batches = 3}, "zero_bubble"),
                      .problem = test::gpt_problem(true),
                      .workers = 3,
                      .servers = 3});
}

TEST(ServedParts, OnSeveralHostsSendWhatThePlanSays) {
  for (const Problem& problem : problems()) {
    Served served{.way = cut(2, {.micro_batches = 2}), .problem = problem};
    served.way.hosts = {1, 1};
    expect_one_process(served);
  }
}

TEST(ServedParts, OfSlicesTrainAsOneProcess) {
  const std::vector<Problem> all = problems();
  for (const Problem& problem : all) {
    const bool has_positions = problem.name.starts_with("gpt");
    expect_one_process({.way = slices(1, has_positions, {.clip = true}), .problem = problem});
    expect_one_process({.way = slices(1, false), .problem = problem, .workers = 2, .sends = true});
    expect_one_process(
        {.way = slices(2, has_positions, {.micro_batches = 2}), .problem = problem, .servers = 5});
    if (!has_positions) continue;  // its unequal slices send more or less than is predicted
    if (!is_long_form() && &problem != &all.back()) continue;
    Served on_hosts{
        .way = slices(2, false, {.micro_batches = 2}), .problem = problem, .servers = 4};
    for (const std::vector<int>& hosts : {std::vector{2, 2}, {1, 1, 1, 1}}) {
      on_hosts.way.hosts = hosts;
      expect_one_process(on_hosts);
    }
  }
}

// Nobody waits for another worker, and the servers of a stage do not know those of another one.
TEST(ServedParts, OfWorkersThatDoNotWaitLearn) {
  Served served{.way = cut(2, {.micro_batches = 2}),
                .problem = test::mlp_problem(),
                .workers = 3,
                .policy = Policy::kAsync};
  const std::vector<Batch> batches(kSteps, served.problem.batches(1, 12)[0]);
  const auto results = train(served, served.run(batches));
  for (const std::vector<RankResult>& worker : results) {
    double first = 0, last = 0;
    for (const RankResult& rank : worker) first += rank.losses.front();
    for (const RankResult& rank : worker) last += rank.losses.back();
    EXPECT_LT(last, first);
  }
}

}  // namespace
}  // namespace stormo::train
