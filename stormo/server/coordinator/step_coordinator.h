#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/optim/lbfgs.h>
#include <stormo/optim/options.h>
#include <stormo/server/coordinator/coordinator.h>
#include <stormo/server/ledger.h>

namespace stormo::server {

/// Coordinates a run with portions, in a thread of its own, from its first step to its end: when
/// all portions of a step are computed, the servers update, and the next step begins. So no worker
/// waits for the one that computes in the same process.
class StepCoordinator {
 public:
  struct Options {
    std::unique_ptr<Coordinator> servers;
    Ledger::Terms terms;
    optim::Options optimizer;
    std::function<double(std::uint64_t step)> learning_rate;  ///< called in the thread
    /// Of optim::Lbfgs, from a checkpoint, whose vectors the servers have. May be empty.
    std::vector<double> numbers = {};
  };
  /// Goes on where the numbers were taken, and begins. status() says whether they fit.
  explicit StepCoordinator(Options options);
  /// Ends the thread.
  ~StepCoordinator();
  StepCoordinator(const StepCoordinator&) = delete;

  /// A failure has ended it.
  Status status() const;
  /// Further steps would change nothing: they are not done.
  bool has_converged() const { return has_converged_.load(std::memory_order_acquire); }
  /// While the result lives, servers make no update, and Ledger::look() says how many there were.
  /// Blocks until one that has begun is made.
  std::unique_lock<std::mutex> pause() { return std::unique_lock(updating_); }
  /// See optim::Lbfgs; empty for other optimizers. While it pauses.
  std::vector<double> numbers() const;
  /// Blocks until it has ended: after the last step, after Ledger::stop(), or when it has
  /// converged. The weights are the best ones known then.
  Status finish();

 private:
  Status run();
  Status update(std::uint64_t step);
  Status finish_optimizer();

  Options options_;
  std::mutex updating_;                // held from the update of a step to the begin of the next
  std::optional<optim::Lbfgs> lbfgs_;  // else the optimizer's rule is that of the shards
  std::atomic<bool> is_stopping_{false}, has_converged_{false}, has_ended_{false};
  Status outcome_;  // of the thread, once has_ended_
  std::thread thread_;
};

}  // namespace stormo::server
