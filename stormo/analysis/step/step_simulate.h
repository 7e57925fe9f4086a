#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <stormo/analysis/schedule/simulate.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/event.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/plan/topology.h>

namespace stormo::analysis {

/// How long things take, in seconds.
struct StepTimes {
  /// A rank's own part of an action: all of a computation, none of a transfer.
  std::function<double(Rank, const plan::Action&)> compute;
  /// Of a collective of a group that lies on hosts like this, when all ranks start together.
  std::function<Result<double>(const std::vector<int>& ranks_per_host, const Collective&)>
      collective;
  double barrier = 0;  ///< of ranks of a host
  /// From one stage of a pipeline to another, and of halos from one rank to another.
  plan::Link stages_in_host = {}, stages_between_hosts = {};
  /// From a worker to the servers and back: as one message of all bytes of a pull or push.
  plan::Link servers = {};
};

/// How long one rank takes for its computations, alone, in seconds.
struct ComputeTimes {
  /// By segment, of one micro-batch; where ranks compute it together, of the part of one of them.
  std::vector<double> forward, backward;
  /// Of a backward in two parts. Both empty: unknown, taken as halves of `backward`.
  std::vector<double> backward_input = {}, backward_weight = {};
  double load = 0;
  double loss = 0;    ///< of one micro-batch
  double norm = 0;    ///< of all gradients
  double update = 0;  ///< of all parameters
  /// What `update` takes to read one gradient of each parameter. Where ranks share their gradients
  /// (share_gradients), an update reads those of all of them.
  double gradient = 0;
};
/// For StepTimes, the same on every rank. Norm and update take as long as the part of the
/// optimizer's state is large that a rank of `plan` has.
std::function<double(Rank, const plan::Action&)> compute_times(const plan::StepPlan& plan,
                                                               const ComputeTimes& times);

/// Something that one rank does, or waits for, in seconds since the start of the step.
struct SimulatedAction {
  Rank rank = 0;
  std::size_t action = 0;  ///< of the plan
  Lane lane = Lane::kCompute;
  double start = 0;
  double end = 0;
};

struct StepSimulation {
  double seconds = 0;           ///< until the last rank is done
  std::vector<double> compute;  ///< by rank: time in computations
  std::vector<double> finish;   ///< by rank
  /// That these are means of, and that the timeline shows: where steps overlap, those from one
  /// agree to the next, but not more than 32.
  int steps = 1;
  /// In the order of the plan, then of ranks; empty for Timeline::kDrop. Intervals of length 0 are
  /// left out.
  std::vector<SimulatedAction> timeline;

  /// Of all ranks' time, the share in which they do not compute.
  double idle_share() const;
};

/// Plays one step of a verified plan in virtual time, on hosts with that many ranks; of a plan
/// whose steps overlap as many as there are from one agree to the next (the times of more than 32
/// are those of 32 and of more steps as the last ones).
///
/// Each rank has a lane of computations and one of communication. A collective begins when the last
/// of its ranks is there and occupies their communication lanes; ranks whose action is not
/// asynchronous wait for its end. An action waits for the transfers of what it needs: forward and
/// backward for the parameters that they read, an average of parts for its reduce_scatter, norm and
/// update for all. A move occupies the communication lane of its sender, which goes on, and the
/// receiver waits for it when it computes with the tensor. Several collectives do not slow each
/// other down. A pull or push occupies the communication lane of its rank alone, which waits for
/// its end, but for no other rank. The servers are taken to be as fast as all workers together, and
/// their updates take no time. Deterministic. O(actions * (actions + ranks)), besides `times`,
/// which are asked once for neighbouring groups that lie on hosts alike.
Result<StepSimulation> simulate(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
                                const StepSizes& sizes, const StepTimes& times,
                                Timeline timeline = Timeline::kKeep);

}  // namespace stormo::analysis
