// Training a table with sparse gradients on servers that write versions: in memory that ranks
// share, and in processes of their own.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/server/worker/worker_session.h>
#include <stormo/train/simulate/simulated_training.h>

#include "../server/server_run.h"
#include "words_run.h"

namespace stormo::train {
namespace {

using server::ServerProcess;
using server::WorkerSession;
using ::testing::HasSubstr;
using Policy = protocol::PolicyOptions::Kind;
using Rule = OptimizerOptions::Kind;

constexpr int kWorkers = 2;

class ServedRows : public test::WordsRun {
 protected:
  ServedRows() { options.servers.policy.kind = Policy::kSync; }

  Outcome run_alone() {
    const ServerOptions servers = std::exchange(options.servers, {});
    options.strategy.kind = Strategy::Kind::kOneDevice;
    const Outcome alone = run(1);
    options.strategy.kind = Strategy::Kind::kParameterServer;
    options.servers = servers;
    return alone;
  }
  /// Two workers, each with a world of its own.
  Outcome run_with_servers(bool share_memory, bool backups) {
    std::vector<ServerProcess> servers(2);
    std::vector<Result<Outcome>> outcomes(kWorkers, Outcome());
    std::vector<std::thread> workers;
    for (int w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&, w] {
        TrainerOptions mine = options;
        mine.servers.count = 2;
        WorkerSession::Options session{
            .worker = w, .workers = kWorkers, .share_memory = share_memory, .backups = backups};
        for (const ServerProcess& s : servers) session.servers.push_back(s.address());
        auto connected = WorkerSession::connect(session, Deadline::after(std::chrono::seconds(20)));
        mine.session = std::move(connected).take_or_throw();
        const auto world = comm::make_inproc_group(1).take_or_throw();
        outcomes[static_cast<std::size_t>(w)] = run_rank(*world[0], mine);
      });
    }
    for (std::thread& worker : workers) worker.join();
    for (auto& server : servers) EXPECT_TRUE(server.outcome().ok());
    return std::move(outcomes[0]).take_or_throw();
  }
};

double distance(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  }
  return most;
}

TEST_F(ServedRows, SyncIsOneProcessWhereverTheServersAre) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdagrad}) {
    options.optimizer.kind = rule;
    const Outcome alone = run_alone();
    const torch::Tensor first = test::make_words()->table->weight.detach();
    EXPECT_GT(distance({alone.values[0]}, {first}), 0.01) << "the table learns";
    EXPECT_LT(distance(run(kWorkers).values, alone.values), 1e-12) << "memory of ranks";
    EXPECT_LT(distance(run_with_servers(true, false).values, alone.values), 1e-12) << "mapped";
    EXPECT_LT(distance(run_with_servers(false, false).values, alone.values), 1e-12) << "sent";
    EXPECT_LT(distance(run_with_servers(false, true).values, alone.values), 1e-12) << "backups";
  }
}

TEST_F(ServedRows, OneWorkerIsOneProcessBitForBit) {
  options.clip_norm = 0.05;
  options.micro_batches = 2;
  options.optimizer.kind = Rule::kAdagrad;
  const Outcome alone = run_alone();
  options.servers.policy.kind = Policy::kAsync;
  EXPECT_EQ(distance(run(1).values, alone.values), 0);
}

TEST_F(ServedRows, ASimulationOfSyncIsTheRun) {
  const Outcome real = run(kWorkers);
  const auto words = test::make_words();
  throw_if_error(simulate_training(test::words_task(words), test::WordsDataset(torch::kFloat64),
                                   options, {.workers = kWorkers, .steps = 20})
                     .status());
  EXPECT_LT(distance({words->table->weight.detach()}, {real.values[0]}), 1e-12);
}

TEST_F(ServedRows, RefusesWhatCannotBe) {
  options.servers.placement = server::PlacementRule::kSliced;
  EXPECT_THAT(refused(), HasSubstr("strategy.placement=sliced cuts through rows; use greedy"));
  options.servers = {};
  options.strategy.exchange_periods = {.fetch = 2, .push = 2};
  EXPECT_THAT(refused(), HasSubstr("pushes whole parameters; leave out fetch_every"));
  options.strategy.exchange_periods = {};
  options.strategy.kind = Strategy::Kind::kElasticAveraging;
  EXPECT_THAT(refused(), HasSubstr("elastic averaging exchanges whole parameters"));
}

}  // namespace
}  // namespace stormo::train
