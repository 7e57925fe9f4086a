#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// Means of pairs of ranks (AD-PSGD): a rank that asks sends its weights to one that answers, which
/// takes the mean of both and says by how much; then the first one moves by as much. Both go on
/// with their steps meanwhile, and what these have changed stays. So the sum over both is kept, and
/// nobody waits. Who asks is protocol::asks().
///
/// Messages of a group are neither lost nor doubled, so an answer says what one mean moves; over
/// lossy links see protocol::AskingRank.
class PairMeans {
 public:
  struct Options {
    std::uint64_t seed = 0;   ///< of the choice whom to ask
    std::int64_t period = 1;  ///< steps from one question of a rank to the next
  };
  /// For this rank's side. `ranks`, at least 2, and `optimizer` are borrowed.
  static std::unique_ptr<PairMeans> create(comm::Communicator& ranks, FusedOptimizer& optimizer,
                                           const Options& options);
  virtual ~PairMeans() = default;
  PairMeans(const PairMeans&) = delete;
  PairMeans& operator=(const PairMeans&) = delete;

  /// From now on this rank takes part. All ranks call it as often as end().
  virtual Status begin() = 0;
  /// Behind step `number` of this rank, in which nobody else has changed its weights: takes what
  /// has come, and asks if that is due and no answer is awaited. Does not wait.
  virtual Status after_step(std::int64_t number) = 0;
  /// No means any more: waits until all ranks that ask have called it. Then nothing is under way.
  virtual Status end() = 0;

  /// All ranks should end soon. They learn of it by the next means that they take. Until begin().
  void call() { called_.store(true, std::memory_order_relaxed); }
  bool called() const { return called_.load(std::memory_order_relaxed); }
  /// That this rank has asked for and taken.
  std::int64_t taken() const { return taken_; }

 protected:
  PairMeans() = default;
  void forget_call() { called_.store(false, std::memory_order_relaxed); }
  std::int64_t taken_ = 0;

 private:
  std::atomic<bool> called_{false};
};

}  // namespace stormo::train
