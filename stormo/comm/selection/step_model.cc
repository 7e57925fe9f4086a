#include <stormo/comm/selection/step_model.h>

#include <chrono>

#include <stormo/plan/project.h>

namespace stormo::comm {
namespace {

using plan::Placement;

/// How many numbers of a rank travel in the codec of an action.
double numbers_of(const plan::StepPlan& p, const plan::Action& a) {
  const std::vector<const plan::ParameterShape*> all = flatten(p.model);
  double sum = 0;
  for (int i = a.range.first; i <= a.range.last; ++i) {
    const plan::ParameterShape& each = *all[static_cast<std::size_t>(i)];
    const bool travels = each.trainable && !each.sparse && !each.elsewhere;
    if (travels) sum += static_cast<double>(each.elements);
  }
  if (row_of(a.kind).places(plan::Value::kGradients, Placement::kShard)) return sum;
  for (std::size_t axis = 0; axis < p.parameters.size(); ++axis) {  // else of this rank's part
    if (p.parameters[axis] == Placement::kShard) sum /= p.mesh.axes[axis].size;
  }
  return sum;
}

}  // namespace

Result<analysis::StepCost> StepModel::cost(const StepInput& step) {
  return analysis::cost(step.plan, step.ranks_per_host, step.sizes, traffic_of_collectives());
}

Result<std::vector<analysis::Traffic>> StepModel::traffic(const plan::AssignedPlan& assigned,
                                                          const StepInput& step) {
  return analysis::traffic(assigned, step.ranks_per_host, step.sizes, traffic_of_collectives());
}

analysis::TrafficOf StepModel::traffic_of_collectives() {
  return [this](const std::vector<int>& hosts, const analysis::Collective& c) {
    return collectives_.traffic(hosts, c);
  };
}

Result<analysis::ComputeTimes> StepModel::times_of(const StepInput& step) const {
  if (step.measured) return *step.measured;
  analysis::ComputeTimes times;
  bool known = false;
  const int slices = plan::slice_of(step.plan.mesh, 0).parts;
  const int positions = plan::context_part(step.plan.mesh, 0).parts;
  const bool has_grid = !plan::place_axes(step.plan.mesh).empty();
  const int grid = has_grid ? plan::sample_part(step.plan.mesh, 0).parts : 1;
  int in_places = grid > 1 ? segments_of_places(step.plan.model) : 0;
  for (const plan::SegmentShape& s : step.plan.model.segments) {
    const bool split = s.splits_output || !s.sums.forward.empty() || !s.split_windows.empty() ||
                       !s.state_crossings.empty();
    const double operations = static_cast<double>(s.flops_per_sample) *
                              static_cast<double>(step.samples) / (split ? slices : 1) / positions /
                              (in_places-- > 0 ? grid : 1);
    known = known || operations > 0;
    times.forward.push_back(operations / (gflops_ * 1e9));
    times.backward.push_back(2 * times.forward.back());
  }
  if (known) return times;
  return invalid_argument("'" + name_ +
                          "' does not say how much its segments compute; give a recipe and "
                          "--measured, or write flops= into the segments");
}

Result<StepModel::ComputeTime> StepModel::compute_of(const StepInput& step) const {
  STORMO_ASSIGN_OR_RETURN(const analysis::ComputeTimes times, times_of(step));
  const ComputeTime computes = analysis::compute_times(step.plan, times);
  if (step.codec == CodecSpeed{}) return computes;
  return ComputeTime([&step, computes](Rank rank, const plan::Action& a) {
    const double own = computes(rank, a);
    if (!row_of(a.kind).has_codec()) return own;
    const auto ranks = static_cast<int>(step.plan.mesh.group(rank, a.axes).size());
    return own + seconds_of_sum(a.codec, step.codec, numbers_of(step.plan, a), ranks);
  });
}

analysis::StepTimes StepModel::on_links(const StepInput& step, const ComputeTime& compute) {
  return {.compute = compute,
          .collective = [this](const std::vector<int>& hosts,
                               const analysis::Collective& c) -> Result<double> {
            STORMO_ASSIGN_OR_RETURN(const Duration d, collectives_.time(hosts, c));
            return std::chrono::duration<double>(d).count();
          },
          .barrier = 2 * links_.intra.latency_s,
          // in a host a stage reads the tensor where the other one has written it
          .stages_in_host = {.latency_s = links_.intra.latency_s, .seconds_per_byte = 0},
          .stages_between_hosts = links_.inter,
          .servers = step.ranks_per_host.size() > 1 ? links_.inter : links_.intra};
}

Result<analysis::StepSimulation> StepModel::simulate(const StepInput& step,
                                                     const ComputeTime& compute,
                                                     analysis::Timeline timeline) {
  return analysis::simulate(step.plan, step.ranks_per_host, step.sizes, on_links(step, compute),
                            timeline);
}

Result<analysis::StepSimulation> StepModel::simulate(const plan::AssignedPlan& assigned,
                                                     const StepInput& step,
                                                     analysis::Timeline timeline) {
  STORMO_ASSIGN_OR_RETURN(const ComputeTime compute, compute_of(step));
  return analysis::simulate(assigned, step.ranks_per_host, step.sizes, on_links(step, compute),
                            timeline);
}

Result<analysis::StepSimulation> StepModel::simulate(const StepInput& step,
                                                     analysis::Timeline timeline) {
  STORMO_ASSIGN_OR_RETURN(const ComputeTime compute, compute_of(step));
  return simulate(step, compute, timeline);
}

Result<analysis::StepSimulation> StepModel::without_communication(const StepInput& step) const {
  STORMO_ASSIGN_OR_RETURN(const analysis::ComputeTimes times, times_of(step));
  const auto no_time = [](const std::vector<int>&, const analysis::Collective&) -> Result<double> {
    return 0.0;
  };
  return analysis::simulate(
      step.plan, step.ranks_per_host, step.sizes,
      {.compute = analysis::compute_times(step.plan, times), .collective = no_time},
      analysis::Timeline::kDrop);
}

}  // namespace stormo::comm
