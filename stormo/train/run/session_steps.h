#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <stormo/base/clock.h>
#include <stormo/server/coordinator/step_coordinator.h>
#include <stormo/server/ledger.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/worker/task_loader.h>

namespace stormo::train {

/// A worker that waits for others looks at signals so often.
inline constexpr Duration kLook = std::chrono::milliseconds(100);

/// How far a worker of server processes is.
struct SessionSteps {
  server::WorkerSession& session;
  server::Ledger& ledger;
  server::Ledger::Terms terms;
  TaskLoader loader;
  server::StepTask task = {};            ///< in hand, or the last one
  server::Ledger::Outcome outcome = {};  ///< of the last task, not yet noted in the ledger
  server::Ledger::Outcome agreed = {};   ///< of a step of all ranks of the worker
  server::Ledger::Totals totals = {};    ///< of all workers, after the last whole step
  std::int64_t own_steps = 0;            ///< of its share, since it began
  std::uint64_t position = 0;            ///< at the end: the first step that is not done by all
  bool member = false;                   ///< others may wait for it at the shards
  std::unique_ptr<server::StepCoordinator> coordinator =
      {};  ///< with portions, of the first worker
};

}  // namespace stormo::train
