#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/assigned.h>
#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/status.h>
#include <stormo/codec/speed.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/plan/assigned/assigned_plan.h>
#include <stormo/plan/step_plan.h>

namespace stormo::comm {

/// A step plan, with what its cost, memory and time depend on besides.
struct StepInput {
  plan::StepPlan plan;
  std::vector<int> ranks_per_host;
  analysis::StepSizes sizes = {};
  analysis::MemorySizes memory = {};
  std::int64_t samples = 1;  ///< of one micro-batch of a rank
  std::optional<analysis::ComputeTimes> measured = {};
  CodecSpeed codec = {};  ///< of that of the plan; 0: encoding and decoding take no time
};

/// Predicts bytes and times of training steps on the links of a topology. Runs none.
class StepModel {
 public:
  static constexpr double kGflops = 50;  ///< of a rank, if nobody says

  /// `name`: what messages call the plan. `gflops`: of a rank, where nothing was measured.
  StepModel(std::string name, const plan::Topology& links,
            Selection selection = Selection::defaults(), double gflops = kGflops)
      : name_(std::move(name)),
        links_(links),
        collectives_(links, std::move(selection)),
        gflops_(gflops) {}

  Result<analysis::StepCost> cost(const StepInput& step);

  /// Of each action of a rank, in seconds.
  using ComputeTime = std::function<double(Rank, const plan::Action&)>;
  Result<analysis::StepSimulation> simulate(const StepInput& step, const ComputeTime& compute,
                                            analysis::Timeline timeline);
  /// With measured times, or by the operations that the plan states for each segment.
  /// kInvalidArgument if neither is there. What ranks encode and decode belongs to what they send.
  Result<analysis::StepSimulation> simulate(const StepInput& step, analysis::Timeline timeline);
  /// The same of `assigned`, whose plan is that of `step`.
  Result<analysis::StepSimulation> simulate(const plan::AssignedPlan& assigned,
                                            const StepInput& step, analysis::Timeline timeline);
  Result<std::vector<analysis::Traffic>> traffic(const plan::AssignedPlan& assigned,
                                                 const StepInput& step);
  /// As simulate() of a step if nothing that ranks exchange took any time.
  Result<analysis::StepSimulation> without_communication(const StepInput& step) const;

 private:
  Result<analysis::ComputeTimes> times_of(const StepInput& step) const;
  Result<ComputeTime> compute_of(const StepInput& step) const;
  analysis::StepTimes on_links(const StepInput& step, const ComputeTime& compute);
  analysis::TrafficOf traffic_of_collectives();

  std::string name_;
  plan::Topology links_;
  CollectiveModel collectives_;
  double gflops_;
};

}  // namespace stormo::comm
