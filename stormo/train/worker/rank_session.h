#pragma once

#include <memory>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/server/worker/worker_session.h>

namespace stormo::train {

/// The session of a worker that is several ranks. The first of them is connected to the servers; of
/// a worker that is cut, each rank to those of its part, which form a run of their own. All ranks
/// make the same calls, and those of the ledger are collectives: the first rank makes them at its
/// servers, and all get its answer. What only a rank with a connection can use, shards and
/// coordinator, others get none of. When a call of one rank fails, the others wait for it until the
/// group fails.
class RankSession final : public server::WorkerSession {
 public:
  struct Place {
    int worker = 0, workers = 1;
    int hosts = 1;         ///< of all workers
    bool backups = false;  ///< see server::WorkerSession::Options
    int rank = 0;          ///< in the worker; one without a connection need not say it
  };
  /// `own`: the session of this rank; null on one without a connection.
  RankSession(const Place& place, std::shared_ptr<server::WorkerSession> own);
  ~RankSession() override;

  /// The ranks of the worker. Before any other call but those for its place. Borrowed.
  void use(comm::Communicator& ranks) { ranks_ = &ranks; }

  int worker() const override { return place_.worker; }
  int workers() const override { return place_.workers; }
  int hosts() const override { return place_.hosts; }
  Result<std::vector<std::unique_ptr<server::Shard>>> shards(const server::RunTerms& terms,
                                                             Deadline by) override;
  Status open() override;
  server::Ledger& ledger() override;
  std::unique_ptr<server::Coordinator> coordinator() override;
  bool opens() const override { return opens_; }
  /// As of the last answer of the ledger, and so the same on all ranks.
  bool is_chief() const override { return is_chief_; }
  bool may_change_chief() const override { return place_.backups; }
  bool is_over() const override { return is_over_; }
  server::WorkerPulse& pulse() override { return own_ ? own_->pulse() : own_pulse_; }
  Status finish() override;
  void fail(const std::string& why) override;

 private:
  class RankLedger;

  Place place_;
  std::shared_ptr<server::WorkerSession> own_;
  server::WorkerSession* first_;  // own_ of the first rank; null on others
  const bool opens_;
  bool is_chief_;
  bool is_over_ = false;
  comm::Communicator* ranks_ = nullptr;
  server::WorkerPulse own_pulse_;  // nobody is told
  std::unique_ptr<RankLedger> ledger_;
};

}  // namespace stormo::train
