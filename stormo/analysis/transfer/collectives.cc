#include <stormo/analysis/transfer/collectives.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <stormo/analysis/transfer/inner.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::GoalKind;
using plan::Placement;
using plan::Value;

std::vector<std::string> all_axes(const plan::Mesh& mesh) {
  std::vector<std::string> names;
  for (const plan::Axis& axis : mesh.axes) names.push_back(axis.name);
  return names;
}

int ranks_of(const plan::Mesh& mesh, const std::vector<std::string>& axes) {
  int ranks = 1;
  for (const std::string& name : axes) {
    ranks *= mesh.axes[static_cast<std::size_t>(mesh.find(name))].size;
  }
  return ranks;
}

class Sizes {
 public:
  /// `model`: of the ranks that the collectives are of.
  Sizes(const plan::StepPlan& plan, const plan::ModelShape& model, std::size_t action,
        const StepSizes& sizes)
      : plan_(plan),
        model_(model),
        action_(action),
        a_(plan.actions[action]),
        row_(row_of(a_.kind)),
        sizes_(sizes) {}

  std::vector<Collective> find() {
    numbers();
    if (row_.makes.has(Value::kLoss)) loss_sums();
    if (row_.runs_forward() || row_.passes_gradient()) {
      inner_sums();
      exchange_keys();
      sums_over_places();
    }
    if (row_.change) change(*row_.change);
    return std::move(out_);
  }

 private:
  void add(std::int64_t elements, DType dtype, const std::vector<std::string>& axes,
           GoalKind goal = GoalKind::kAllReduce, const std::string& algorithm = {}) {
    if (elements == 0 || ranks_of(plan_.mesh, axes) == 1) return;
    out_.push_back(
        {.goal = goal, .elements = elements, .dtype = dtype, .axes = axes, .algorithm = algorithm});
  }

  void numbers() {
    const plan::Numbers& n = row_.numbers;
    if (n.count == 0) return;
    std::vector<std::string> axes = a_.axes;
    if (n.over != plan::Over::kItsAxes) {
      if (row_.scope == plan::Scope::kRank && has_servers(plan_)) return;  // it decides alone
      axes =
          together(n.over == plan::Over::kDataAxes ? data_axes(plan_.mesh) : all_axes(plan_.mesh));
    }
    const plan::Range range =
        row_.range == plan::RangeOf::kParameters ? a_.range : all_parameters(model_);
    const std::int64_t times = n.of_each_parameter ? trainable_in(range)
                               : row_.all_batches  ? agreed_numbers()
                                                   : 1;
    add(n.count * times, n.dtype, axes);
  }

  /// A placement says by which collective it comes from another.
  void change(const plan::Change& c) {
    if (c.of == Value::kGradients) {
      switch (c.to) {
        case Placement::kReplicate: return all_reduce();
        case Placement::kShard: return flat(GoalKind::kReduceScatter);
        case Placement::kStaged: return sum_tied();
        case Placement::kSplit: return sum_whole();
        default: return;  // read in memory, or pushed
      }
    }
    if (c.from == Placement::kRemote) {  // from the first rank of a worker to the others
      add(server_bytes(plan_, a_, sizes_), DType::kUInt8, together({}), GoalKind::kBroadcast);
    }
    if (c.to != Placement::kReplicate) return;
    if (c.from == Placement::kShard) return flat(GoalKind::kAllGather);
    if (!has_servers(plan_)) average();
  }

  /// Over which ranks do a step together: with servers those of a worker, else `axes`.
  std::vector<std::string> together(const std::vector<std::string>& axes) const {
    if (!has_servers(plan_)) return axes;
    if (plan_.mesh.find(plan::kWorkerAxis) < 0) return model_axes(plan_.mesh);
    return {plan::kWorkerAxis};
  }

  std::int64_t trainable_in(plan::Range parameters) const {
    std::int64_t count = 0;
    for (const plan::FlatGroup& group : plan::flat_groups(model_, parameters)) {
      if (group.trainable) count += static_cast<std::int64_t>(group.counts.size());
    }
    return count;
  }

  bool weights_are_known() const {
    return std::ranges::any_of(
        plan_.actions, [](const Action& a) { return row_of(a.kind).makes.has(Value::kWeights); });
  }

  bool was_scattered() const {
    const auto end = plan_.actions.begin() + static_cast<std::ptrdiff_t>(action_);
    return std::any_of(plan_.actions.begin(), end, [this](const Action& before) {
      return row_of(before.kind).places(Value::kGradients, Placement::kShard) &&
             before.range == a_.range;
    });
  }

  /// Of the axis that the parameters of the range are cut over.
  int parts() const {
    for (std::size_t axis = 0; axis < plan_.parameters.size(); ++axis) {
      if (plan_.parameters[axis] == Placement::kShard) return plan_.mesh.axes[axis].size;
    }
    return 1;
  }

  void flat(GoalKind goal) {
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      const bool gradients = goal == GoalKind::kReduceScatter;
      if (gradients && !group.trainable) continue;
      // what is never updated is gathered once, where it is not dropped after use
      if (!gradients && !group.trainable && !frozen_in_parts()) continue;
      if (row_of(a_.codec).in_blocks()) {
        add_encoded(elements(group));
        continue;
      }
      add(elements(group), type_sent(a_.codec, group.dtype), a_.axes, goal, a_.algorithm);
    }
  }

  bool frozen_in_parts() const { return std::ranges::count(plan_.frozen, Placement::kShard) > 0; }

  std::int64_t elements(const plan::FlatGroup& group) const {
    return plan::flat_buffer(group.counts, static_cast<std::int64_t>(size_of(group.dtype)), parts())
        .elements;
  }

  void all_reduce() {
    const bool parts_only = was_scattered();
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable || group.sparse) continue;
      const DType dtype = type_sent(a_.codec, group.dtype);
      const bool encoded = row_of(a_.codec).in_blocks();
      if (parts_only) {
        const std::int64_t part = elements(group) / parts();
        if (encoded) {
          add_encoded(part);
        } else {
          add(part, dtype, a_.axes, GoalKind::kAllReduce, a_.algorithm);
        }
        continue;
      }
      const auto flags = static_cast<std::int64_t>(group.counts.size());  // one for each
      const std::int64_t count =
          std::accumulate(group.counts.begin(), group.counts.end(), std::int64_t{0});
      if (encoded) {
        if (!weights_are_known() && out_.empty()) add(1, DType::kFloat64, a_.axes);
        add(flags, DType::kFloat64, a_.axes);
        add_encoded(count);
        continue;
      }
      if (!weights_are_known()) {
        add(1, DType::kFloat64, a_.axes);
        if (!out_.empty()) out_.back().only_between_hosts = true;
      }
      add(flags + count, dtype, a_.axes, GoalKind::kAllReduce, a_.algorithm);
    }
  }

  /// The sum of so many numbers in a codec of blocks: each rank adds up a part, and an all-reduce
  /// gives the sums to all.
  void add_encoded(std::int64_t elements) {
    const int ranks = ranks_of(plan_.mesh, a_.axes);
    const std::int64_t bytes = ranks * encoded_parts(row_of(a_.codec), elements, ranks).bytes;
    add(ranks * bytes, DType::kUInt8, a_.axes, GoalKind::kAllToAll);
    if (row_.places(Value::kGradients, Placement::kReplicate))
      add(bytes, DType::kUInt8, a_.axes, GoalKind::kAllGather);
  }

  /// With averages also how far the ranks were from them.
  std::int64_t agreed_numbers() const {
    const bool averages = is_diverged(plan_) && !has_centre(plan_);
    return sizes_.agreed_numbers + (averages && sizes_.agreed_numbers > 0 ? 1 : 0);
  }

  // The weights and the steps of each parameter first. Of numbers of 16 bits the masters are
  // averaged.
  void average() {
    add(1 + trainable_in(a_.range), DType::kFloat64, a_.axes);
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable) continue;
      std::int64_t count = 0;
      for (const std::int64_t n : group.counts) count += n;
      const DType dtype = size_of(group.dtype) == 2 ? DType::kFloat32 : group.dtype;
      for (int i = 0; i <= sizes_.averaged_slots; ++i) {
        add(count, dtype, a_.axes, GoalKind::kAllReduce, averaging_algorithm(plan_.mesh));
      }
    }
  }

  void sum_tied() {
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable) continue;
      const bool parts_only = was_scattered();
      for (const std::int64_t n : group.counts) {
        add(parts_only ? elements(group) / parts() : n, group.dtype, {plan::kStageAxis});
      }
    }
  }

  /// All of one type together.
  void sum_whole() {
    std::vector<std::pair<DType, std::int64_t>> elements;
    const auto all = plan::flatten(model_);
    for (int i = a_.range.first; i <= a_.range.last; ++i) {
      const plan::ParameterShape* const p = all[static_cast<std::size_t>(i)];
      if (p->elsewhere || !is_trained_whole(p)) continue;
      auto same = std::ranges::find(elements, p->dtype, &std::pair<DType, std::int64_t>::first);
      if (same == elements.end()) same = elements.insert(same, {p->dtype, 0});
      same->second += p->elements;
    }
    for (const auto& [dtype, count] : elements) add(count, dtype, {plan::kTensorAxis});
  }

  /// What the ranks add up that compute layers together.
  void inner_sums() {
    if (plan_.mesh.find(plan::kTensorAxis) < 0) return;
    const bool backward = row_.passes_gradient();
    const int first_trained = backward ? first_trained_segment(model_) : 0;
    for (int i = 0; i < a_.range.size(); ++i) {
      const int s = backward ? a_.range.last - i : a_.range.first + i;
      if (backward && s < first_trained) break;
      const plan::InnerSums& sums = model_.segments[static_cast<std::size_t>(s)].sums;
      const bool goes_further = !backward || s > first_trained;
      const auto begins = goes_further ? sums.backward : std::vector<std::int64_t>();
      if (plan_.sequence_parallel) {
        gather_and_scatter(begins, sums.forward);
      } else {
        add_sums(backward ? begins : sums.forward);
      }
    }
  }
  /// The same, where ranks have parts of the positions: forward gathers them where a split begins
  /// and scatters them where it ends, and backward the other way round.
  void gather_and_scatter(const std::vector<std::int64_t>& begins,
                          const std::vector<std::int64_t>& ends) {
    const bool backward = row_.passes_gradient();
    const DType own = own_type(), computed = sizes_.computes_in.value_or(own);
    const auto &gathered = backward ? ends : begins, &scattered = backward ? begins : ends;
    const std::size_t count = std::max(begins.size(), ends.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t k = backward ? count - 1 - i : i;
      if (k < gathered.size()) {
        add_inner(gathered[k], backward ? computed : own, GoalKind::kAllGather);
      }
      if (k < scattered.size()) {
        add_inner(scattered[k], backward ? own : computed, GoalKind::kReduceScatter);
      }
    }
  }
  void loss_sums() {
    if (a_.axes.empty()) return;
    const std::vector<std::int64_t>& sums = model_.segments.back().sums.loss;
    if (plan_.labels < 0) return add_sums(sums);
    for (const std::int64_t n : sums) {
      add_inner(n, own_type(), GoalKind::kBroadcast);
      if (!out_.empty()) out_.back().root = plan_.labels;
    }
  }
  void add_sums(const std::vector<std::int64_t>& sums) {
    const DType own = own_type();
    const DType type = row_.runs_forward() ? sizes_.computes_in.value_or(own) : own;
    for (const std::int64_t n : sums) add_inner(n, type, GoalKind::kAllReduce);
  }
  /// `elements` of a sample of all positions.
  void add_inner(std::int64_t elements, DType type, GoalKind goal) {
    const int positions = plan::context_part(plan_.mesh, 0).parts;
    add(elements * sizes_.samples / positions, type, {plan::kTensorAxis}, goal);
  }
  DType own_type() const { return parameter_type(model_); }

  /// What ranks send that have parts of the positions. A ring sends to the same ranks as these
  /// algorithms.
  void exchange_keys() {
    if (plan_.mesh.find(plan::kContextAxis) < 0) return;
    const DType own = own_type();
    const DType type = sizes_.computes_in.value_or(own);
    const std::vector<std::string> axes = {plan::kContextAxis};
    const int first_trained = row_.passes_gradient() ? first_trained_segment(model_) : 0;
    for (int s = std::max(a_.range.first, first_trained); s <= a_.range.last; ++s) {
      const std::int64_t keys = model_.segments[static_cast<std::size_t>(s)].keys * sizes_.samples /
                                plan::slice_of(plan_.mesh, 0).parts;
      if (plan_.attention == plan::AttentionForm::kHeads) {
        add(keys / 2 * 3, type, axes, GoalKind::kAllToAll);  // queries too
        add(keys / 2, type, axes, GoalKind::kAllToAll);
        continue;
      }
      add(keys, type, axes, GoalKind::kAllGather, "ring_all_gather");
      if (!row_.passes_gradient()) continue;
      add(keys, own, axes, GoalKind::kReduceScatter, "ring_reduce_scatter");
    }
  }

  /// What ranks add up that have parts of the places: the moments of batch normalisation, and in
  /// forward what the last of these segments computes.
  void sums_over_places() {
    const std::vector<std::string> axes = plan::place_axes(plan_.mesh);
    if (axes.empty()) return;
    const bool backward = row_.passes_gradient();
    const int first_trained = backward ? first_trained_segment(model_) : 0;
    for (int s = std::max(a_.range.first, first_trained); s <= a_.range.last; ++s) {
      const plan::SegmentShape& segment = model_.segments[static_cast<std::size_t>(s)];
      for (const std::int64_t channels : segment.norms) {
        if (backward) {
          add(2 * channels, DType::kFloat64, axes);
        } else {
          add((1 + 2 * channels) * ranks_of(plan_.mesh, axes), DType::kFloat64, axes,
              GoalKind::kAllGather);
        }
      }
      if (backward) continue;
      add(segment.place_sum * sizes_.samples, sizes_.computes_in.value_or(own_type()), axes);
    }
  }

  const plan::StepPlan& plan_;
  const plan::ModelShape& model_;
  std::size_t action_;
  const Action& a_;
  const plan::ActionRow& row_;
  const StepSizes& sizes_;
  std::vector<Collective> out_;
};

/// In how many ways collectives over ranks with the same slice differ: 1 where all ranks of
/// kTensorAxis have equally much, else their number.
int different_slices(const plan::StepPlan& plan) {
  const int parts = slice_of(plan.mesh, 0).parts;
  for (const plan::ParameterShape* p : flatten(plan.model)) {
    if (!p->split.counts.empty() || p->split.units % parts != 0) return parts;
  }
  return 1;
}

/// What a rank of a worker that is cut gives others which read it, too, when it has pulled it: the
/// first one of a stage what is not split, and then the first stage what others read.
std::vector<Collective> given_values(const plan::StepPlan& plan, const Action& pull) {
  const plan::Stages part(plan.model);
  const int stages = num_stages(plan.mesh), slices = slice_of(plan.mesh, 0).parts;
  std::vector<Collective> out;
  for (int s = 0; slices > 1 && s < stages; ++s) {
    Collective c{.goal = GoalKind::kBroadcast, .dtype = DType::kUInt8, .axes = {plan::kTensorAxis}};
    const plan::ModelShape model = model_of(plan.model, s, {0, slices});
    const auto all = plan::flatten(model);
    for (int i = pull.range.first; i <= pull.range.last; ++i) {
      const plan::ParameterShape* const p = all[static_cast<std::size_t>(i)];
      if (part.of_parameter(i).front() != s || !is_trained_whole(p)) continue;
      c.elements += p->elements * static_cast<std::int64_t>(size_of(p->dtype));
    }
    if (stages > 1) c.stages = {s};
    if (c.elements > 0) out.push_back(c);
  }
  const int different = different_slices(plan);
  for (int i = pull.range.first; i <= pull.range.last; ++i) {
    if (!part.is_tied(i)) continue;
    for (int slice = 0; slice < different; ++slice) {
      const plan::ModelShape model =
          model_of(plan.model, part.of_parameter(i).front(), {slice, slices});
      const plan::ParameterShape& p = *flatten(model)[static_cast<std::size_t>(i)];
      if (!p.trainable || p.elements == 0) continue;
      out.push_back({.goal = GoalKind::kBroadcast,
                     .elements = p.elements,
                     .dtype = p.dtype,
                     .axes = {plan::kStageAxis},
                     .stages = part.of_parameter(i),
                     .slice = different > 1 ? slice : -1});
    }
  }
  return out;
}

}  // namespace

std::vector<Collective> collectives_of(const plan::StepPlan& plan, std::size_t action,
                                       const StepSizes& sizes) {
  const Action& a = plan.actions[action];
  const int stages = num_stages(plan.mesh);
  const plan::ActionRow& row = row_of(a.kind);
  const bool of_parts = row.range == plan::RangeOf::kParameters || row.numbers.of_each_parameter;
  if (model_axes(plan.mesh).empty() || !of_parts) {
    std::vector<Collective> all = Sizes(plan, plan.model, action, sizes).find();
    const bool is_loss = row.makes.has(Value::kLoss);
    if (stages == 1 || (!is_loss && row.range == plan::RangeOf::kNothing)) return all;
    const plan::SegmentShape& computed =
        is_loss ? plan.model.segments.back()
                : plan.model.segments[static_cast<std::size_t>(a.range.first)];
    for (Collective& c : all) c.stages = {computed.stage};
    return all;
  }
  if (row.takes_from(Placement::kRemote)) return given_values(plan, a);
  const plan::Stages part(plan.model);
  const int slices = different_slices(plan);
  std::vector<Collective> out;
  for (int s = 0; s < stages; ++s) {
    if (!part.concern(a, s)) continue;
    const bool tied = row.places(Value::kGradients, Placement::kStaged);
    for (int slice = 0; slice < slices; ++slice) {
      const plan::ModelShape model = model_of(plan.model, s, {slice, slice_of(plan.mesh, 0).parts});
      for (Collective& c : Sizes(plan, model, action, sizes).find()) {
        const bool is_inside = slices > 1 && std::ranges::count(c.axes, plan::kTensorAxis) == 0;
        if (slice > 0 && !is_inside) continue;  // of all slices together
        if (is_inside) c.slice = slice;
        if (stages > 1) c.stages = tied ? part.of_parameter(a.range.first) : std::vector<int>{s};
        out.push_back(std::move(c));
      }
    }
    if (tied) break;  // one sum over all of its stages
  }
  return out;
}

std::int64_t moved_bytes(const plan::StepPlan& plan, const plan::Action& a,
                         const StepSizes& sizes) {
  if (!row_of(a.kind).moves() || sizes.outputs.empty()) return 0;
  return sizes.outputs[static_cast<std::size_t>(a.range.first)] /
         parts_of_output(plan, a.range.first);
}

std::int64_t server_bytes(const plan::StepPlan& plan, const Action& a, const StepSizes& sizes) {
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
