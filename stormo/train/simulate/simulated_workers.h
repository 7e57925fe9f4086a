#pragma once

#include <cstdint>
#include <memory>

#include <stormo/base/status.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/train/step/runner.h>

namespace stormo::train {

/// The workers of a run in virtual time, with their data: what they do when virtual time says so.
class SimulatedWorkers {
 public:
  virtual ~SimulatedWorkers() = default;

  virtual const protocol::Policy& policy() const = 0;
  /// Sets how many servers there are, and when workers exchange with them.
  virtual void describe(protocol::VirtualCluster& cluster) const = 0;
  /// See WorkerGradients::compute().
  virtual Result<StepOutcome> compute(int worker, int part, std::int64_t step) = 0;
  /// All but `computed` and `ends`.
  virtual protocol::VirtualEvents events() = 0;
  /// Whether all losses were finite. If not, compute() fails.
  virtual bool finite() const = 0;
  /// The module gets the values of the end.
  virtual void finish() = 0;
};

}  // namespace stormo::train
