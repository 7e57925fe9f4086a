#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/protocol/strads/virtual_rounds.h>
#include <stormo/strads/block_program.h>

namespace stormo::strads {

/// What runs rounds of a program. Both ways below give the same updates in the same order, and the
/// same values bit for bit, for equal schedulers, equal numbers of workers and equal calls of
/// go_on(), which drains what is in flight.
class RoundsRun {
 public:
  virtual ~RoundsRun() = default;
  /// Until `rounds` rounds in total are done; none is in flight then.
  virtual Status go_on(std::int64_t rounds) = 0;
  virtual Result<Judgement> judge() = 0;
  virtual const protocol::Scheduler& scheduler() const = 0;
  std::int64_t updates() const { return updates_; }  ///< of blocks
  /// Of all blocks in the order of their updates (FNV-1a).
  std::uint64_t order_hash() const { return order_hash_; }
  /// Both of them, of a run that this one goes on from.
  void count_from(std::int64_t updates, std::uint64_t order_hash) {
    updates_ = updates;
    order_hash_ = order_hash;
  }

 protected:
  void note(const protocol::ComputeRound& round);

 private:
  std::int64_t updates_ = 0;
  std::uint64_t order_hash_ = 0xcbf29ce484222325ull;
};

/// A collective: the sum of all ranks' parts, of equal sizes, in the order of ranks: equal bits on
/// all of them, and those of one process that adds up in this order. Memory: all parts.
Result<std::vector<double>> sum_of_parts(comm::Communicator& world, std::span<double> part);

/// Workers are the ranks of a group, this one among them. Every rank has a scheduler of the same
/// state, so no rank asks another one what to do; what is sent is parts alone, by an all-gather for
/// each round. A lost rank fails it, as every operation of the group.
class RankRounds final : public RoundsRun {
 public:
  /// The options' workers must be the ranks of `world`. `world` and `program` outlive this.
  RankRounds(comm::Communicator& world, BlockProgram& program, protocol::Scheduler scheduler);
  /// Blocks until nothing that a failed go_on() has begun uses memory of this.
  ~RankRounds() override;
  RankRounds(const RankRounds&) = delete;
  RankRounds& operator=(const RankRounds&) = delete;
  Status go_on(std::int64_t rounds) override;
  Result<Judgement> judge() override;
  const protocol::Scheduler& scheduler() const override { return scheduler_; }

 private:
  struct Gathering {
    protocol::ComputeRound round;
    std::vector<double> part, parts, values;
    comm::Work done;  // where rounds are in flight besides this one
  };
  Status handle(const std::vector<protocol::FromScheduler>& messages);
  Status compute(const protocol::ComputeRound& round);
  Status end_oldest();

  comm::Communicator& world_;
  BlockProgram& program_;
  protocol::Scheduler scheduler_;
  std::deque<Gathering> gathering_;
};

/// Workers are programs in this process, in virtual time.
class VirtualRoundsRun final : public RoundsRun {
 public:
  /// The options' workers must be the number of programs, of which the first one is worker 0.
  VirtualRoundsRun(std::vector<std::unique_ptr<BlockProgram>> programs,
                   protocol::Scheduler scheduler, protocol::VirtualWorkers workers);
  Status go_on(std::int64_t rounds) override;
  Result<Judgement> judge() override;
  const protocol::Scheduler& scheduler() const override { return scheduler_; }
  BlockProgram& program(int worker) { return *programs_[static_cast<std::size_t>(worker)]; }
  Duration time() const { return time_; }
  const std::vector<Duration>& waited() const { return waited_; }  ///< by worker

 private:
  struct Round {
    std::vector<double> parts, values;
    std::size_t set = 0;  // workers
  };
  Result<std::vector<double>> aggregate(const protocol::ComputeRound& round);

  std::vector<std::unique_ptr<BlockProgram>> programs_;
  protocol::Scheduler scheduler_;
  protocol::VirtualWorkers workers_;
  std::map<std::int64_t, Round> rounds_;
  Duration time_{};
  std::vector<Duration> waited_;
};

}  // namespace stormo::strads
