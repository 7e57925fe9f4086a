#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A way of sharing the work among ranks, by its name and its choices.
struct Strategy {
  enum class Kind {
    kOneDevice,            ///< one rank
    kMirrored,             ///< replicas on one host
    kMultiWorkerMirrored,  ///< replicas on any hosts
    kCentralStorage,       ///< one copy of parameters and optimizer state, on one host
    kDdp,                  ///< data parallel on any hosts, in the form that is fastest there
    kFsdp,                 ///< parameters, gradients or optimizer state sharded
  } kind = Kind::kDdp;
  /// How many copies of the parameters there are.
  enum class Parameters {
    kAuto,        ///< kDdp, kFsdp: host-shared where that is possible and serves, else as kind says
    kReplicated,  ///< one for each rank
    kHostShared,  ///< one for each host
    kSharded,     ///< kFsdp: a part for each rank, even where the host's memory could be shared
  } parameters = Parameters::kAuto;
  int stage = 3;        ///< kFsdp: what is sharded; 1 optimizer state, 2 gradients too, 3 all
  bool hybrid = false;  ///< kFsdp: shard inside hosts, replicate across them
  bool operator==(const Strategy&) const = default;
};

/// Names as in recipes, in the order of the enumerators.
const std::vector<std::string>& strategy_names();
const std::vector<std::string>& parameter_names();

/// What a strategy runs on.
struct Workers {
  std::vector<int> ranks_per_host = {1};
  /// The ranks of a host can read each other's memory, and the parameters and the optimizer allow
  /// for one copy: float32 or float64, updated by Stormo's own rules.
  bool can_share = true;
};

/// What a step does besides, whatever the strategy.
struct StepOptions {
  int micro_batches = 1;          ///< that a rank's part of a batch is cut into
  bool scale_loss = false;        ///< gradients in float16
  bool clip = false;              ///< gradients are clipped by their norm
  bool trust_ratios = false;      ///< the update rule needs norms of whole parameters
  int prefetch = 0;               ///< see Sharding
  bool recompute = false;         ///< see recompute()
  std::int64_t bucket_bytes = 0;  ///< above 0: of replicas, see bucket()
};

/// The plan of one training step. On one rank every strategy is one_device. kInvalidArgument says
/// why the strategy does not fit, and what does.
Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const Workers& workers, const StepOptions& step = {});

}  // namespace stormo::parallel
