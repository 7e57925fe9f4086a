#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/protocol/strads/virtual_rounds.h>
#include <stormo/strads/block_program.h>

namespace stormo::strads {

/// The workers of a program: the ranks of a group, of which this process is one, or programs that
/// are all in this process.
class Workers {
 public:
  using Fill = std::function<void(BlockProgram& program, std::span<double> part)>;

  /// `world` is borrowed.
  Workers(comm::Communicator& world, std::unique_ptr<BlockProgram> program);
  explicit Workers(std::vector<std::unique_ptr<BlockProgram>> programs);
  /// The rank of `world` that this process is, or so many simulated workers. `make(worker,
  /// workers)` gives a Result of a unique_ptr to the program of one.
  template <class Make>
  static Result<Workers> make(comm::Communicator& world, std::optional<int> simulated,
                              const Make& make) {
    std::vector<std::unique_ptr<BlockProgram>> here;
    for (int w = 0; w < simulated.value_or(1); ++w) {
      STORMO_ASSIGN_OR_RETURN(auto program,
                              simulated ? make(w, *simulated) : make(world.rank(), world.size()));
      here.push_back(std::move(program));
    }
    return simulated ? Workers(std::move(here)) : Workers(world, std::move(here.front()));
  }

  int count() const;
  /// Those of this process, in order.
  const std::vector<std::unique_ptr<BlockProgram>>& here() const { return here_; }
  BlockProgram& first() const { return *here_.front(); }

  /// `size` numbers of each worker of this process, which `fill` computes.
  std::vector<double> parts(std::size_t size, const Fill& fill) const;
  /// A collective: those of all workers, by worker, into `all`. With `later` it may go on, and both
  /// stay in their place until that is done.
  Status gather(std::vector<double>& parts, std::vector<double>& all,
                comm::Work* later = nullptr) const;
  /// A collective: the sum of what `fill` computes, in the order of workers: equal bits on all
  /// ranks, and those of workers in one process. Memory: all parts.
  Result<std::vector<double>> sum(std::size_t size, const Fill& fill) const;
  /// A collective: the values of all workers, on rank 0 of a group; on the others not all rows.
  Result<BlockValues> values() const;

 private:
  comm::Communicator* world_ = nullptr;  // null: all workers are here
  std::vector<std::unique_ptr<BlockProgram>> here_;
};

/// Executes a plan of rounds (round_plan()), action by action. Ranks, and workers in virtual time,
/// have the same updates in the same order, and the same values bit for bit, for equal schedulers,
/// equal numbers of workers and equal calls of go_on(), which drains what is in flight. Every rank
/// has a scheduler of the same state, so no rank asks another one what to do; what is sent is parts
/// alone, by an all-gather for each round. A lost rank fails it, as every operation of the group.
class RoundsRun {
 public:
  /// `simulated`: how long rounds take, where all workers are in this process. kBadPlan as
  /// check_round_plan().
  static Result<RoundsRun> make(Workers workers, protocol::Scheduler scheduler, plan::StepPlan plan,
                                std::optional<protocol::VirtualWorkers> simulated = std::nullopt);
  /// Blocks until nothing that a failed go_on() has begun uses memory of this.
  ~RoundsRun();
  RoundsRun(RoundsRun&&) = default;
  RoundsRun& operator=(RoundsRun&&) = delete;

  /// Until `rounds` rounds in total are done; none is in flight then.
  Status go_on(std::int64_t rounds);
  /// The plan's agree, when no round is in flight.
  Result<Judgement> judge();

  const plan::StepPlan& plan() const { return plan_; }
  /// Told of every action when it is done, or started if it is asynchronous, in order; may be
  /// empty.
  void on_done(std::function<void(const plan::Action&)> done) { done_ = std::move(done); }
  const protocol::Scheduler& scheduler() const { return scheduler_; }
  const Workers& workers() const { return workers_; }
  const protocol::VirtualRounds* simulated() const { return time_ ? &*time_ : nullptr; }
  std::int64_t updates() const { return updates_; }  ///< of blocks
  /// Of all blocks in the order of their updates (FNV-1a).
  std::uint64_t order_hash() const { return order_hash_; }
  /// Both of them, of a run that this one goes on from.
  void count_from(std::int64_t updates, std::uint64_t order_hash) {
    updates_ = updates;
    order_hash_ = order_hash;
  }

 private:
  /// A round from its load until its update.
  struct Round {
    std::vector<std::int64_t> blocks = {};
    std::vector<double> parts = {}, all = {};  // of workers of this process; of all, if reduced
    comm::Work reduced = comm::Work::completed({});
  };
  RoundsRun(Workers workers, protocol::Scheduler scheduler, plan::StepPlan plan)
      : workers_(std::move(workers)),
        scheduler_(std::move(scheduler)),
        plan_(std::move(plan)),
        depth_(longest_delay(plan_)) {}
  Status step(int finishing);
  Status execute(const plan::Action& action, Round& round);
  template <class Compute>
  void each(const Compute& compute) const {
    for (const auto& program : workers_.here()) compute(*program);
  }
  Status choose(Round& round);
  void backward(Round& round) const;
  Status update(Round& round);

  Workers workers_;
  protocol::Scheduler scheduler_;
  plan::StepPlan plan_;
  int depth_;  // rounds in flight besides the oldest one
  std::function<void(const plan::Action&)> done_;
  std::optional<protocol::VirtualRounds> time_;
  std::deque<Round> rounds_;  // in flight, the newest first
  std::int64_t updates_ = 0;
  std::uint64_t order_hash_ = 0xcbf29ce484222325ull;
};

}  // namespace stormo::strads
