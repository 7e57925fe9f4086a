#include <stormo/analysis/transfer/requests.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <stormo/analysis/transfer/inner.h>
#include <stormo/base/check.h>
#include <stormo/plan/adasum.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/gradient_matrix.h>
#include <stormo/plan/logical_shards.h>
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

/// Finds what the ranks with one part of the model ask for.
class Finder {
 public:
  Finder(const plan::StepPlan& plan, const PartOfModel& part, std::size_t action,
         const StepSizes& sizes)
      : plan_(plan),
        model_(part.model),
        stage_(part.stage),
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
    if (row_.averages_slot) average();
    return std::move(out_);
  }

 private:
  /// Null, and nothing is added, where nothing is to be sent.
  Collective* add(std::int64_t elements, DType dtype, const std::vector<std::string>& axes,
                  GoalKind goal = GoalKind::kAllReduce, const std::string& algorithm = {}) {
    if (elements == 0 || ranks_over(plan_.mesh, axes) == 1) return nullptr;
    return &out_.emplace_back(Collective{
        .goal = goal, .elements = elements, .dtype = dtype, .axes = axes, .algorithm = algorithm});
  }
  /// A reduction in the form that the action states.
  void reduce(Collective c) {
    const bool encoded = row_of(a_.codec).encodes();
    c.dtype = plan::combines_by_adasum(a_) ? DType::kFloat32 : type_summed(a_.codec, c.dtype);
    c.axes = a_.axes;
    c.algorithm = a_.algorithm;
    if (encoded) c.codec = a_.codec;
    if (ranks_over(plan_.mesh, c.axes) > 1) out_.push_back(std::move(c));
  }

  void numbers() {
    const plan::Numbers& n = row_.numbers;
    if (n.count == 0) return;
    std::vector<std::string> axes = a_.axes;
    if (n.over != plan::Over::kItsAxes) {
      if (row_.scope == plan::Scope::kRank && has_servers(plan_)) return;  // it decides alone
      axes = together(n.over);
    }
    const plan::Range range =
        row_.range == plan::RangeOf::kParameters ? a_.range : all_parameters(model_);
    const std::int64_t times = n.of_each_parameter ? trainable_in(range)
                               : row_.all_batches  ? agreed_numbers()
                                                   : 1;
    const bool of_shards = row_.all_batches && plan_.logical_shards > 0;
    Collective* const sum = add(n.count * times, n.dtype, axes, GoalKind::kAllReduce,
                                of_shards ? plan::kFixedTreeAllReduce : "");
    if (sum == nullptr) return;
    const bool is_flag = n.dtype != DType::kFloat64;  // whether any rank has it
    if (is_flag) sum->combine = Combine::kMax;
    if (row_.makes.has(Value::kWeights)) sum->content = Content::kWeights;
  }

  /// A placement says by which collective it comes from another.
  void change(const plan::Change& c) {
    if (row_.meets_neighbours()) return meet_neighbours();
    if (c.of == Value::kGradients) {
      switch (c.to) {
        case Placement::kReplicate: return was_scattered() ? reduce_parts() : average_gradients();
        case Placement::kShard: return flat(GoalKind::kReduceScatter);
        case Placement::kStaged: return all_reduce_tied();
        case Placement::kSplit: return all_reduce_unsplit();
        default: return;  // read in memory, or pushed
      }
    }
    if (c.from == Placement::kRemote) give_pulled();
    if (c.to != Placement::kReplicate) return;
    if (c.from == Placement::kShard) return flat(GoalKind::kAllGather);
    if (row_.averages() && !has_servers(plan_)) average();
  }

  /// Over which ranks add numbers up: with servers those of a worker, and so for gradients that a
  /// worker averages.
  std::vector<std::string> together(plan::Over over) const {
    const bool of_gradients = over == plan::Over::kDataAxes, served = has_servers(plan_);
    const bool has_workers = plan_.mesh.find(plan::kWorkerAxis) >= 0;
    if (has_workers && (served || of_gradients)) return {plan::kWorkerAxis};
    if (served) return model_axes(plan_.mesh);
    return of_gradients ? data_axes(plan_.mesh) : all_axes(plan_.mesh);
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
      if (goal == GoalKind::kReduceScatter) {
        if (group.trainable) {
          reduce({.goal = goal, .elements = elements(group), .dtype = group.dtype, .axes = {}});
        }
        continue;
      }
      Collective* const whole = add(elements(group), group.dtype, a_.axes, goal, a_.algorithm);
      // what is never updated is gathered once, where it is not dropped after use
      if (whole != nullptr) whole->once = !group.trainable && !frozen_in_parts();
    }
  }

  bool frozen_in_parts() const { return std::ranges::count(plan_.frozen, Placement::kShard) > 0; }

  std::int64_t elements(const plan::FlatGroup& group) const {
    return plan::flat_buffer(group.counts, static_cast<std::int64_t>(size_of(group.dtype)), parts())
        .elements;
  }

  /// Of each type this rank's part, over those who have the same.
  void reduce_parts() {
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable || group.sparse) continue;
      reduce({.elements = elements(group) / parts(), .dtype = group.dtype, .axes = {}});
    }
  }

  /// Of whole parameters: those of one type together.
  void average_gradients() {
    if (ranks_over(plan_.mesh, a_.axes) == 1) return;
    const bool encoded = row_of(a_.codec).encodes(), by_adasum = plan::combines_by_adasum(a_);
    const bool packs = encoded || by_adasum;
    // terms that are weighted already, or have no weights
    const bool is_sum = packs || plan_.logical_shards > 0;
    const auto shapes = plan::flatten(model_);
    std::vector<Collective> of_types;
    for (int i = a_.range.last; i >= a_.range.first; --i) {
      const plan::ParameterShape& p = *shapes[static_cast<std::size_t>(i)];
      if (p.elsewhere || !p.trainable || p.sparse) continue;
      auto same = std::ranges::find(of_types, p.dtype, &Collective::dtype);
      if (same == of_types.end()) {
        same = of_types.insert(same, {.dtype = p.dtype,
                                      .axes = {},
                                      .combine = is_sum ? Combine::kSum : Combine::kWeightedAverage,
                                      .weights_known = weights_are_known()});
      }
      const bool fits = !packs && type_summed(a_.codec, p.dtype) == p.dtype;
      const bool large = p.elements * static_cast<std::int64_t>(size_of(p.dtype)) >= kInPlaceBytes;
      (fits && large ? same->in_place : same->packed).push_back(i);
      if (row_of(a_.codec).has_factors() || by_adasum) {
        same->gradients.push_back(plan::matrix_of(p));
      }
      same->elements += p.elements;
    }
    for (Collective& c : of_types) {
      const auto flags = static_cast<std::int64_t>(c.in_place.size() + c.packed.size());
      if (packs) {  // behind the flags, and what is encoded behind the weights
        if (encoded && !weights_are_known() && out_.empty()) add_number(Content::kWeights, 1);
        add_number(Content::kFlags, flags);
      } else if (sizes_.flags_apart) {
        add_number(Content::kFlags, flags);
        out_.back().combine = c.combine;
        out_.back().weights_known = c.weights_known;
      } else {
        c.elements += flags;
      }
      reduce(std::move(c));
    }
  }
  void add_number(Content content, std::int64_t count) {
    add(count, DType::kFloat64, a_.axes);
    out_.back().content = content;
  }

  std::int64_t agreed_numbers() const {
    const bool averages = is_diverged(plan_) && !has_centre(plan_);
    const bool more = averages && sizes_.agreed_numbers > 0;
    return sizes_.agreed_numbers + (more ? plan::kAveragedNumbers : 0);
  }

  // The weights first, and with the optimizer's state the steps of each parameter.
  void average() {
    const bool state = row_.averages_state || row_.averages_slot;
    add(1 + (state ? trainable_in(a_.range) : 0), DType::kFloat64, a_.axes);
    const bool encoded = row_of(a_.codec).encodes();
    for (int i = 0; i <= (row_.averages_state ? sizes_.averaged_slots : 0); ++i) {
      for (const auto& [dtype, count] : arrays()) {
        Collective* const sum =
            add(count, type_summed(a_.codec, dtype), a_.axes, GoalKind::kAllReduce,
                encoded ? "" : averaging_algorithm(plan_.mesh));
        if (sum != nullptr && encoded) sum->codec = a_.codec;
      }
    }
  }

  // With the optimizer's state the steps of each parameter come first, of copies the updates.
  void meet_neighbours() {
    const auto send = [this](std::int64_t count, DType dtype) {
      Collective* const sent = add(count, dtype, a_.axes, GoalKind::kAllToAll);
      if (sent != nullptr) sent->of_neighbours = true;
    };
    if (row_.selects) send(trainable_in(a_.range), DType::kFloat64);
    if (row_.copies) send(1, DType::kInt64);
    for (int i = 0; i <= (row_.selects ? sizes_.averaged_slots : 0); ++i) {
      for (const auto& [dtype, count] : arrays()) send(count, dtype);
    }
  }

  /// The elements of one array of what ranks average, by type: of numbers of 16 bits the masters.
  std::vector<std::pair<DType, std::int64_t>> arrays() const {
    std::vector<std::pair<DType, std::int64_t>> out;
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable) continue;
      out.emplace_back(size_of(group.dtype) == 2 ? DType::kFloat32 : group.dtype,
                       std::accumulate(group.counts.begin(), group.counts.end(), std::int64_t{0}));
    }
    return out;
  }

  /// Of one parameter, among the stages that read it.
  void all_reduce_tied() {
    for (const plan::FlatGroup& group : plan::flat_groups(model_, a_.range)) {
      if (!group.trainable) continue;
      const bool parts_only = was_scattered();
      for (const std::int64_t n : group.counts) {
        share_tied(a_.range.first, parts_only ? elements(group) / parts() : n, group.dtype,
                   GoalKind::kAllReduce);
      }
    }
  }
  void share_tied(int parameter, std::int64_t elements, DType dtype, GoalKind goal) {
    Collective* const shared = add(elements, dtype, {plan::kStageAxis}, goal);
    if (shared == nullptr) return;
    shared->stages = plan::Stages(model_).of_parameter(parameter);
    // replicas lie on other hosts, and must add up in the same order
    if (goal == GoalKind::kAllReduce && shared->stages.size() > 2) {
      shared->algorithm = "star_all_reduce";
    }
    shared->in_place = {parameter};
  }

  /// All of one type together.
  void all_reduce_unsplit() {
    std::vector<Collective> of_types;
    const auto all = plan::flatten(model_);
    for (int i = a_.range.first; i <= a_.range.last; ++i) {
      const plan::ParameterShape* const p = all[static_cast<std::size_t>(i)];
      if (p->elsewhere || !is_trained_whole(p) || p->elements == 0) continue;
      auto same = std::ranges::find(of_types, p->dtype, &Collective::dtype);
      if (same == of_types.end()) {
        same = of_types.insert(same, {.dtype = p->dtype, .axes = {plan::kTensorAxis}});
      }
      same->elements += p->elements;
      same->in_place.push_back(i);
    }
    if (ranks_over(plan_.mesh, {plan::kTensorAxis}) > 1) out_ = std::move(of_types);
  }

  /// What is pulled by one rank of a worker, and read by others. Of several ranks without parts the
  /// first one gives all. Where a worker is cut, the first rank of a stage gives what is not split,
  /// and then the first stage what others read.
  void give_pulled() {
    if (plan_.mesh.find(plan::kWorkerAxis) >= 0) {
      add(server_bytes(plan_, a_, sizes_), DType::kUInt8, {plan::kWorkerAxis},
          GoalKind::kBroadcast);
    }
    if (model_axes(plan_.mesh).empty()) return;
    const plan::Stages stages(model_);
    const auto all = plan::flatten(model_);
    std::vector<int> whole, tied;
    std::int64_t bytes = 0;
    for (int i = a_.range.first; i <= a_.range.last; ++i) {
      const plan::ParameterShape* const p = all[static_cast<std::size_t>(i)];
      if (p->elsewhere || !p->trainable || p->elements == 0) continue;
      if (stages.is_tied(i)) tied.push_back(i);
      if (stages.of_parameter(i).front() != stage_ || !is_trained_whole(p)) continue;
      whole.push_back(i);
      bytes += p->elements * static_cast<std::int64_t>(size_of(p->dtype));
    }
    if (plan_.mesh.find(plan::kTensorAxis) >= 0) {
      Collective* const given =
          add(bytes, DType::kUInt8, {plan::kTensorAxis}, GoalKind::kBroadcast);
      if (given != nullptr) given->in_place = std::move(whole);
    }
    for (const int i : tied) {
      const plan::ParameterShape* const p = all[static_cast<std::size_t>(i)];
      share_tied(i, p->elements, p->dtype, GoalKind::kBroadcast);
    }
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
      Collective* const sent = add_inner(n, own_type(), GoalKind::kBroadcast);
      if (sent != nullptr) sent->root = plan_.labels;
    }
  }
  void add_sums(const std::vector<std::int64_t>& sums) {
    const DType own = own_type();
    const DType type = row_.runs_forward() ? sizes_.computes_in.value_or(own) : own;
    for (const std::int64_t n : sums) add_inner(n, type, GoalKind::kAllReduce);
  }
  /// `elements` of a sample of all positions.
  Collective* add_inner(std::int64_t elements, DType type, GoalKind goal) {
    const int positions = plan::context_part(plan_.mesh, 0).parts;
    return add(elements * sizes_.samples / positions, type, {plan::kTensorAxis}, goal);
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
          add((1 + 2 * channels) * ranks_over(plan_.mesh, axes), DType::kFloat64, axes,
              GoalKind::kAllGather);
        }
      }
      if (backward) continue;
      add(segment.spatial_all_reduce * sizes_.samples, sizes_.computes_in.value_or(own_type()),
          axes);
    }
  }

  const plan::StepPlan& plan_;
  const plan::ModelShape& model_;
  int stage_;
  std::size_t action_;
  const Action& a_;
  const plan::ActionRow& row_;
  const StepSizes& sizes_;
  std::vector<Collective> out_;
};

}  // namespace

int ranks_over(const plan::Mesh& mesh, const std::vector<std::string>& axes) {
  int ranks = 1;
  for (const std::string& name : axes) {
    ranks *= mesh.axes[static_cast<std::size_t>(mesh.find(name))].size;
  }
  return ranks;
}

std::vector<Collective> requests_of(const plan::StepPlan& plan, const PartOfModel& part,
                                    std::size_t action, const StepSizes& sizes) {
  return Finder(plan, part, action, sizes).find();
}

std::vector<Collective> requests_of(const plan::StepPlan& own, std::size_t action,
                                    const StepSizes& sizes) {
  return requests_of(own, {own.model}, action, sizes);
}

PlanRequests::PlanRequests(const plan::StepPlan& own, const StepSizes& sizes, int stage) {
  for (std::size_t i = 0; i < own.actions.size(); ++i) {
    const plan::Action& a = own.actions[i];
    all_.emplace(key_of(a), std::pair(a, requests_of(own, {own.model, stage}, i, sizes)));
  }
}

const std::vector<Collective>& PlanRequests::of(const plan::Action& action) const {
  auto [found, end] = all_.equal_range(key_of(action));
  while (found != end && found->second.first != action) ++found;
  STORMO_CHECK(found != end, "an action of another plan");
  return found->second.second;
}

}  // namespace stormo::analysis
