#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include <stormo/base/status.h>
#include <stormo/optim/lbfgs.h>
#include <stormo/optim/options.h>
#include <stormo/server/coordinator.h>
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
  };
  explicit StepCoordinator(Options options);
  /// Ends the thread.
  ~StepCoordinator();
  StepCoordinator(const StepCoordinator&) = delete;

  /// A failure has ended it.
  Status status() const;
  /// Further steps would change nothing: they are not done.
  bool has_converged() const { return has_converged_.load(std::memory_order_acquire); }
  /// Blocks until it has ended: after the last step, after Ledger::stop(), or when it has
  /// converged. The weights are the best ones known then.
  Status finish();

 private:
  Status run();
  Status update(std::uint64_t step);
  Status settle();

  Options options_;
  std::optional<optim::Lbfgs> lbfgs_;  // else the optimizer's rule is that of the shards
  std::atomic<bool> is_stopping_{false}, has_converged_{false}, has_ended_{false};
  Status outcome_;  // of the thread, once has_ended_
  std::thread thread_;
};

}  // namespace stormo::server
