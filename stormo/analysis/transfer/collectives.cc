#include <stormo/analysis/transfer/collectives.h>

#include <algorithm>
#include <utility>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/codec/adasum.h>
#include <stormo/plan/adasum.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::GoalKind;
using plan::Placement;
using plan::Value;

/// What the requests of one rank are sent as.
std::vector<Collective> sent_by(const plan::StepPlan& plan, const PartOfModel& part,
                                std::size_t action, const StepSizes& sizes) {
  std::vector<Collective> out;
  for (const Collective& request : requests_of(plan, part, action, sizes)) {
    if (request.once || request.of_neighbours) continue;
    const int ranks = ranks_over(plan.mesh, request.axes);
    for (Collective& c : sent_as(request, ranks)) out.push_back(std::move(c));
  }
  return out;
}

/// Parts to their owners, the scalar products of each level of the tree, and what comes out to all.
std::vector<Collective> sent_by_adasum(const Collective& request, int ranks) {
  const codec::Adasum form(request.gradients, ranks);
  Collective whole{.goal = GoalKind::kAllToAll,
                   .elements = ranks * ranks * form.part_numbers(),
                   .axes = request.axes,
                   .stages = request.stages};
  std::vector<Collective> out = {whole};
  for (int level = 0; level < form.levels(); ++level) {
    out.push_back({.elements = form.num_products(level),
                   .dtype = DType::kFloat64,
                   .axes = request.axes,
                   .stages = request.stages});
  }
  whole.goal = GoalKind::kAllGather;
  whole.elements = ranks * form.part_numbers();
  out.push_back(std::move(whole));
  return out;
}

/// In how many ways collectives over ranks with the same slice differ: 1 where all ranks of
/// kTensorAxis have equally much, else their number.
int different_slices(const plan::StepPlan& plan) {
  const int parts = slice_of(plan.mesh, 0).parts;
  for (const plan::ParameterShape* p : flatten(plan.model)) {
    if (!p->split.counts.empty() || p->split.units % parts != 0) return parts;
  }
  return 1;
}

}  // namespace

std::vector<Collective> sent_as(const Collective& request, int ranks) {
  if (request.algorithm == plan::kAdasum) return sent_by_adasum(request, ranks);
  const CodecRow& codec = row_of(request.codec);
  Collective c{.goal = request.goal,
               .elements = request.elements,
               .dtype = request.dtype,
               .axes = request.axes,
               .stages = request.stages,
               .algorithm = codec.encodes() ? std::string() : request.algorithm,
               .root = request.root};
  if (codec.has_factors()) {
    const codec::LowRank factors(request.gradients, request.codec.matrix_rank);
    c.elements = factors.left_numbers();
    if (factors.right_numbers() == 0) return {c};
    Collective right = c;
    right.elements = factors.right_numbers();
    return {c, right};
  }
  if (codec.encodes()) {
    const std::int64_t bytes =
        ranks * encoded_parts(codec, request.codec.density, request.elements, ranks).bytes;
    if (codec.sums == CodecSums::kLinear) {
      c.elements = bytes / static_cast<std::int64_t>(size_of(c.dtype));
      return {c};
    }
    c.dtype = DType::kUInt8;
    c.goal = GoalKind::kAllToAll;
    c.elements = ranks * bytes;
    if (request.goal == GoalKind::kReduceScatter) return {c};
    Collective sums = c;
    sums.goal = GoalKind::kAllGather;
    sums.elements = bytes;
    return {c, sums};
  }
  if (request.combine != Combine::kWeightedAverage || request.weights_known) return {c};
  return {{.elements = 1, .dtype = DType::kFloat64, .axes = c.axes, .only_between_hosts = true}, c};
}

std::vector<Collective> collectives_of(const plan::StepPlan& plan, std::size_t action,
                                       const StepSizes& sizes) {
  const plan::Action& a = plan.actions[action];
  const int stages = num_stages(plan.mesh);
  const plan::ActionRow& row = row_of(a.kind);
  const bool of_parts = row.range == plan::RangeOf::kParameters || row.numbers.of_each_parameter;
  if (model_axes(plan.mesh).empty() || !of_parts) {
    std::vector<Collective> all = sent_by(plan, {plan.model}, action, sizes);
    const bool is_loss = row.makes.has(Value::kLoss);
    if (stages == 1 || (!is_loss && row.range == plan::RangeOf::kNothing)) return all;
    const plan::SegmentShape& computed =
        is_loss ? plan.model.segments.back()
                : plan.model.segments[static_cast<std::size_t>(a.range.first)];
    for (Collective& c : all) c.stages = {computed.stage};
    return all;
  }
  const plan::Stages part(plan.model);
  const int slices = different_slices(plan);
  std::vector<Collective> out;
  for (int s = 0; s < stages; ++s) {
    if (!part.concern(a, s)) continue;
    for (int slice = 0; slice < slices; ++slice) {
      const plan::ModelShape model = model_of(plan.model, s, {slice, slice_of(plan.mesh, 0).parts});
      for (Collective& c : sent_by(plan, {model, s}, action, sizes)) {
        const bool is_inside = slices > 1 && std::ranges::count(c.axes, plan::kTensorAxis) == 0;
        if (slice > 0 && !is_inside) continue;  // of all slices together
        if (is_inside) c.slice = slice;
        if (c.stages.empty() && stages > 1) c.stages = {s};
        // what stages do together counts once
        if (c.stages.empty() || c.stages.front() == s) out.push_back(std::move(c));
      }
    }
  }
  // what one stage does comes before
  std::ranges::stable_partition(out, [](const Collective& c) { return c.stages.size() < 2; });
  return out;
}

std::int64_t moved_bytes(const plan::StepPlan& plan, const plan::Action& a,
                         const StepSizes& sizes) {
  if (!row_of(a.kind).moves() || sizes.outputs.empty()) return 0;
  return sizes.outputs[static_cast<std::size_t>(a.range.first)] /
         parts_of_output(plan, a.range.first);
}

std::int64_t server_bytes(const plan::StepPlan& plan, const plan::Action& a,
                          const StepSizes& sizes) {
  const plan::ActionRow& row = row_of(a.kind);
  const bool push = row.places(Value::kGradients, Placement::kRemote);
  const bool averages = averages_on_servers(plan);
  const bool gives = averages && row.places(Value::kParameters, Placement::kReplicate);
  if (row.scope != plan::Scope::kServers && !gives) return 0;
  const std::int64_t arrays = averages ? 1 + sizes.averaged_slots : 1;
  const auto number = static_cast<std::int64_t>(size_of(DType::kFloat64));  // of steps
  std::int64_t bytes = 0;
  for (const plan::FlatGroup& group : plan::flat_groups(plan.model, a.range)) {
    if (!group.trainable || (push && group.sparse)) continue;
    for (const std::int64_t n : group.counts) {
      bytes += arrays * n * static_cast<std::int64_t>(size_of(group.dtype));
      if (averages) bytes += number;
    }
  }
  return row.places(Value::kParameters, Placement::kRemote) ? 2 * bytes : bytes;
}

}  // namespace stormo::analysis
