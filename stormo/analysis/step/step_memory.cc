#include <stormo/analysis/step/step_memory.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <stormo/analysis/step/assigned.h>
#include <stormo/codec/adasum.h>
#include <stormo/plan/adasum.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/gradient_matrix.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/plan/momentum.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::Placement;
using plan::Range;
using plan::Value;

/// Of an outer optimizer, for each element: what the period began with, and a momentum.
constexpr int kOuterNumbers = 2;
/// Of gradients that are tracked: the estimate of their mean, and those of the step before.
constexpr int kTrackedNumbers = 2;

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// Into how many parts the ranks cut a value, or in how many they count one copy.
int parts(const plan::Mesh& mesh, const std::vector<Placement>& placed, Placement how) {
  int out = 1;
  for (std::size_t axis = 0; axis < placed.size(); ++axis) {
    if (placed[axis] == how) out *= mesh.axes[axis].size;
  }
  return out;
}

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Walks the actions of one stage once, and keeps what is held after each.
class MemoryWalk {
 public:
  MemoryWalk(const plan::StepPlan& plan, const MemorySizes& sizes, int stage)
      : plan_(plan),
        model_(largest_model_of(plan.model, plan.mesh, stage)),
        stages_(plan.model),
        stage_(stage),
        sizes_(sizes),
        shards_(parts(plan.mesh, plan.parameters, Placement::kShard)),
        in_parts_(std::ranges::count(plan.parameters, Placement::kShard) > 0),
        shapes_(flatten(model_)),
        reads_(parameters_read(model_)),
        has_gradient_(shapes_.size()),
        longest_delay_(longest_delay(plan)) {
    for (const Action& a : plan.actions) {
      if (row_of(a.kind).places(Value::kParameters, Placement::kShard)) dropped_.push_back(a.range);
      if (row_of(a.kind).recomputes()) recomputed_.insert(computation_of(a));
    }
    now_.process = sizes.process;
    rest();
  }

  StepMemory take() {
    StepMemory out{.between_steps = now_, .peak = now_};
    // where steps overlap, until as many batches are under way as ever, each with its version
    for (step_ = 0; step_ <= 2 * longest_delay_; ++step_) {
      for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
        const Action& a = plan_.actions[i];
        if (a.delay > step_ || !stages_.concern(a, stage_)) continue;
        do_action(a);
        if (highest_.total() <= out.peak.total()) continue;
        out.peak = highest_;
        out.peak_action = i;
      }
    }
    return out;
  }

 private:
  /// What is there between steps. Of ranges that no action drops, the whole stays.
  void rest() {
    for (const plan::Unit& unit : plan::units_of(model_)) rest(unit.parameters);
    for (const Action& a : plan_.actions) {
      if (!row_of(a.kind).reduces || !stages_.concern(a, stage_)) continue;
      for (const plan::FlatGroup& group : groups(a.range)) {
        if (group.trainable && !group.sparse) now_.gradients += kept_by(a, group);
      }
    }
    averages_under_way();
    copies_of_neighbours();
  }
  /// Of a member of a population: the most that one of them has.
  void copies_of_neighbours() {
    for (const Action& a : plan_.actions) {
      if (!row_of(a.kind).copies) continue;
      const auto members = static_cast<int>(plan_.mesh.group(0, a.axes).size());
      const plan::Mixing mixing = plan::mixing_of(a.algorithm, members).take_or_throw();
      std::size_t most = 0;
      for (Rank r = 0; r < members; ++r) {
        most = std::max(most, senders_to(mixing.at(0), r).size());
      }
      for (const plan::FlatGroup& group : groups(a.range)) {
        if (!group.trainable) continue;
        now_.parameters +=
            static_cast<std::int64_t>(most) * elements(group) * bytes_of(group.dtype);
      }
    }
  }
  /// Those of the largest range that travel while steps go on, and what codecs keep for all.
  void averages_under_way() {
    std::int64_t largest = 0;
    for (const Action& a : plan_.actions) {
      if (!row_of(a.kind).averages() || !stages_.concern(a, stage_)) continue;
      std::int64_t bytes = 0;
      for (const plan::FlatGroup& group : groups(a.range)) {
        if (!group.trainable) continue;
        const DType own = size_of(group.dtype) == 2 ? DType::kFloat32 : group.dtype;
        bytes += elements(group) * bytes_of(type_summed(a.codec, own));
        now_.optimizer_state += kept_by_codec(a, elements(group));
      }
      if (a.asynchronous) largest = std::max(largest, bytes);
    }
    now_.optimizer_state += largest;
  }
  void rest(Range own) {
    const int state_parts = parts(plan_.mesh, plan_.optimizer_state, Placement::kShard);
    for (const plan::FlatGroup& group : groups(own)) {
      const std::int64_t whole = elements(group) * bytes_of(group.dtype);
      const auto& placed = group.trainable ? plan_.parameters : plan_.frozen;
      const bool resident = std::ranges::count(dropped_, own) == 0;
      const int held = resident ? parts(plan_.mesh, placed, Placement::kShared)
                                : parts(plan_.mesh, placed, Placement::kShard);
      now_.parameters += divide_up(whole, held);
      if (!group.trainable) continue;
      const bool averages = averages_on_servers(plan_);
      if (has_worker_copies(plan_) && !averages) now_.gradients += whole;  // their sums
      if (has_centre(plan_)) now_.parameters += whole;                     // what an exchange makes
      if (is_remote(plan_) && !averages) continue;  // servers have the optimizer's state
      const int more = (has(&plan::ActionRow::outer_updates) ? kOuterNumbers : 0) +
                       (has(&plan::ActionRow::tracks) ? kTrackedNumbers : 0);
      now_.optimizer_state += divide_up(whole, state_parts) * (sizes_.optimizer_numbers + more);
    }
  }

  bool has(bool (plan::ActionRow::*fact)() const) const {
    return std::ranges::any_of(plan_.actions,
                               [fact](const Action& a) { return (row_of(a.kind).*fact)(); });
  }

  /// A codec that encodes has memory for what it lost, of terms and of one part of the sums, for a
  /// momentum of the terms, if they have one, and for two codes.
  std::int64_t kept_by_codec(const Action& a, std::int64_t numbers) const {
    const CodecRow& codec = row_of(a.codec);
    if (!codec.encodes()) return 0;
    const auto ranks = static_cast<int>(plan_.mesh.group(0, a.axes).size());
    if (ranks == 1) return 0;
    const EncodedParts parts = encoded_parts(codec, a.codec.density, numbers, ranks);
    const int rows = ranks + 1 + (plan::momentum_of(a) ? ranks : 0);
    return parts.numbers * rows * bytes_of(DType::kFloat32) + 2 * ranks * parts.bytes;
  }

  /// Gradients of replicas that do not travel as they are get packed into a buffer that is kept.
  std::int64_t kept_by(const Action& reduction, const plan::FlatGroup& group) const {
    const CodecRow& codec = row_of(reduction.codec);
    const bool by_adasum = plan::combines_by_adasum(reduction);
    const DType sent = by_adasum ? DType::kFloat32 : type_summed(reduction.codec, group.dtype);
    const bool packed = !in_parts_ && (by_adasum || codec.encodes() || sent != group.dtype);
    const std::int64_t bytes = packed ? elements(group) * bytes_of(sent) : 0;
    const auto ranks = static_cast<int>(plan_.mesh.group(0, reduction.axes).size());
    if (by_adasum && ranks > 1) return bytes + kept_by_adasum(reduction, group.dtype);
    if (codec.has_factors() && ranks > 1) return bytes + kept_with_factors(reduction, group.dtype);
    const bool of_part =
        in_parts_ && row_of(reduction.kind).places(Value::kGradients, Placement::kReplicate);
    return bytes + kept_by_codec(reduction, elements(group) / (of_part ? shards_ : 1));
  }

  std::vector<codec::MatrixShape> gradients_of(const Action& reduction, DType dtype) const {
    std::vector<codec::MatrixShape> out;
    for (int i = reduction.range.first; i <= reduction.range.last; ++i) {
      const plan::ParameterShape& p = *shapes_[static_cast<std::size_t>(i)];
      const bool here = !p.elsewhere && p.trainable && !p.sparse;
      if (here && p.dtype == dtype) out.push_back(plan::matrix_of(p));
    }
    return out;
  }

  /// All parts of this rank's, its part of all ranks', and scalar products.
  std::int64_t kept_by_adasum(const Action& reduction, DType dtype) const {
    const auto ranks = static_cast<int>(plan_.mesh.group(0, reduction.axes).size());
    const codec::Adasum form(gradients_of(reduction, dtype), ranks);
    return 2 * ranks * form.part_numbers() * bytes_of(DType::kFloat32) +
           form.num_products(0) * bytes_of(DType::kFloat64);
  }

  /// What was lost, a left message, and three right ones.
  std::int64_t kept_with_factors(const Action& reduction, DType dtype) const {
    const codec::LowRank factors(gradients_of(reduction, dtype), reduction.codec.matrix_rank);
    return bytes_of(DType::kFloat32) *
           (factors.numbers() + factors.left_numbers() + 3 * factors.right_numbers());
  }

  void do_action(const Action& a) {
    highest_ = now_;
    const plan::ActionRow& row = row_of(a.kind);
    if (row.makes.has(Value::kBatch)) load();
    if (row.makes.has(Value::kUpdated)) update(a);
    if (row.runs_forward()) {
      const bool forgets = is_recomputed(a) && !row.recomputes();
      now_.activations += forgets ? output(a.range) : activations(a.range);
    }
    if (row.adds_gradients) {
      for (int s = a.range.last; s >= a.range.first; --s) add_gradients(s);
      keep_highest();
      now_.activations -= activations(a.range) + (is_recomputed(a) ? output(a.range) : 0);
      if (plan_.logical_shards > 0 && ends_micro_batch(a)) add_up_shards(a.micro_batch);
    }
    if (row.is({Value::kParameters, Placement::kShard, Placement::kReplicate})) {
      now_.parameters += whole_if_dropped(a.range);
    }
    if (row.places(Value::kParameters, Placement::kShard)) {
      now_.parameters -= whole_if_dropped(a.range);
    }
    if (row.places(Value::kGradients, Placement::kShard)) scatter(a.range, a.codec);
    if (row.needs.has(Value::kTerms)) now_.gradients -= std::exchange(terms_[key(a.range)], 0);
    keep_highest();
  }

  /// A batch keeps the version of the parameters that it was loaded with, until its update. In the
  /// meantime others make new versions.
  void load() {
    if (plan_.newest_weights) return;
    version_of_.push_back(newest_);
    ++versions_[newest_].batches;
  }
  void update(const Action& a) {
    if (longest_delay_ == 0) return;
    if (!plan_.newest_weights) change_version(a);
    keep_highest();
    for (int p = a.range.first; p <= a.range.last; ++p) {
      const auto i = static_cast<std::size_t>(p);
      if (!has_gradient_[i]) continue;
      now_.gradients -= shapes_[i]->elements * bytes_of(shapes_[i]->dtype);
      has_gradient_[i] = false;
    }
  }
  void change_version(const Action& a) {
    int& own = version_of_[static_cast<std::size_t>(step_ - a.delay)];
    if (own >= 0) {
      Version& version = versions_[own];
      if (--version.batches == 0) now_.parameters -= std::exchange(version.bytes, 0);
      own = -1;
    }
    Version& before = versions_[newest_];
    if (before.batches > 0) {  // else in place
      before.bytes = bytes_to_update(a.range);
      now_.parameters += before.bytes;
      ++newest_;
    }
  }
  std::int64_t bytes_to_update(Range parameters) const {
    std::int64_t out = 0;
    for (int p = parameters.first; p <= parameters.last; ++p) {
      const plan::ParameterShape& shape = *shapes_[static_cast<std::size_t>(p)];
      if (shape.trainable && !shape.elsewhere) out += shape.elements * bytes_of(shape.dtype);
    }
    return out;
  }

  void keep_highest() {
    if (now_.total() > highest_.total()) highest_ = now_;
  }

  /// Gradients lie whole where backward leaves them. Later micro-batches add to them, one parameter
  /// after the other.
  void add_gradients(int segment) {
    for (const int i : reads_[static_cast<std::size_t>(segment)]) {
      const auto p = static_cast<std::size_t>(i);
      if (!shapes_[p]->trainable) continue;
      const std::int64_t bytes = shapes_[p]->elements * bytes_of(shapes_[p]->dtype);
      now_.gradients += bytes;
      keep_highest();
      if (has_gradient_[p]) now_.gradients -= bytes;
      has_gradient_[p] = true;
    }
  }

  bool ends_micro_batch(const Action& a) const {
    const auto last = std::find_if(plan_.actions.rbegin(), plan_.actions.rend(), [&](auto& b) {
      return row_of(b.kind).adds_gradients && b.micro_batch == a.micro_batch;
    });
    return &*last == &a;
  }

  /// Of the rank that has most. Each node of the tree that is complete has sums of its own, and two
  /// are added up one parameter after the other.
  void add_up_shards(int shard) {
    const plan::Range all = all_parameters(model_);
    std::int64_t largest = 0;
    for (const plan::ParameterShape* p : shapes_) {
      if (p->trainable) largest = std::max(largest, p->elements * bytes_of(p->dtype));
    }
    for (int sums = plan::nodes_complete_with(plan_.micro_batches, shard); sums > 0; --sums) {
      now_.gradients += largest;
      keep_highest();
      now_.gradients -= largest + bytes_to_update(all);
    }
    const bool is_last = shard + 1 == plan_.micro_batches;
    for (std::size_t p = 0; p < shapes_.size(); ++p) {
      has_gradient_[p] = is_last && shapes_[p]->trainable;
    }
  }

  /// The terms move into a flat buffer, this rank's part of the sum into another.
  void scatter(Range parameters, Codec codec) {
    std::int64_t gradients = 0;
    for (const plan::FlatGroup& group : groups(parameters)) {
      if (!group.trainable) continue;
      const std::int64_t terms = elements(group) * bytes_of(type_summed(codec, group.dtype));
      terms_[key(parameters)] += terms;
      now_.gradients += terms;
      for (const std::int64_t n : group.counts) gradients += n * bytes_of(group.dtype);
    }
    keep_highest();
    now_.gradients -= gradients;
    if (is_released_before_update(parameters) && shards_ > 1) {
      now_.gradients += terms_[key(parameters)] / shards_;
    }
    for (int i = parameters.first; i <= parameters.last; ++i) {
      has_gradient_[static_cast<std::size_t>(i)] = false;
    }
  }

  /// Else the part that is updated lies among the terms.
  bool is_released_before_update(Range parameters) const {
    for (const Action& a : plan_.actions) {
      if (row_of(a.kind).makes.has(Value::kUpdated)) return false;
      if (row_of(a.kind).needs.has(Value::kTerms) && a.range == parameters) return true;
    }
    return false;
  }

  std::int64_t whole_if_dropped(Range parameters) const {
    if (std::ranges::count(dropped_, parameters) == 0) return 0;
    std::int64_t bytes = 0;
    for (const plan::FlatGroup& group : groups(parameters)) {
      bytes += elements(group) * bytes_of(group.dtype);
    }
    return bytes;
  }

  bool is_recomputed(const Action& computation) const {
    return recomputed_.contains(computation_of(computation));
  }
  /// Range and micro-batch.
  static std::tuple<int, int, int> computation_of(const Action& a) {
    return {a.range.first, a.range.last, a.micro_batch};
  }

  std::int64_t activations(Range segments) const {
    std::int64_t bytes = 0;
    for (int s = segments.first; s <= segments.last && !sizes_.activations.empty(); ++s) {
      bytes += sizes_.activations[static_cast<std::size_t>(s)];
    }
    return bytes;
  }

  /// The next segment's input.
  std::int64_t output(Range segments) const {
    return sizes_.outputs.empty() ? 0
                                  : sizes_.outputs[static_cast<std::size_t>(segments.last)] /
                                        parts_of_output(plan_, segments.last);
  }

  std::vector<plan::FlatGroup> groups(Range parameters) const {
    return plan::flat_groups(model_, parameters);
  }
  /// With alignment, where the parameters lie in a flat buffer.
  std::int64_t elements(const plan::FlatGroup& group) const {
    if (in_parts_) return plan::flat_buffer(group.counts, bytes_of(group.dtype), shards_).elements;
    std::int64_t sum = 0;
    for (const std::int64_t n : group.counts) sum += n;
    return sum;
  }
  static std::pair<int, int> key(Range r) { return {r.first, r.last}; }

  /// Parameters that are not the newest ones any more, as long as batches need them.
  struct Version {
    int batches = 0;
    std::int64_t bytes = 0;
  };

  const plan::StepPlan& plan_;
  plan::ModelShape model_;  // of the stage
  plan::Stages stages_;
  int stage_;
  const MemorySizes& sizes_;
  int shards_;
  bool in_parts_;
  std::vector<Range> dropped_;
  std::set<std::tuple<int, int, int>> recomputed_;
  std::vector<const plan::ParameterShape*> shapes_;
  std::vector<std::vector<int>> reads_;  // by segment: parameters
  std::vector<bool> has_gradient_;
  std::map<std::pair<int, int>, std::int64_t> terms_;  // of reductions, by range
  int longest_delay_;
  int step_ = 0;
  int newest_ = 0;               // version of the parameters
  std::vector<int> version_of_;  // by batch; -1: it has its update
  std::map<int, Version> versions_;
  Memory now_;
  Memory highest_;  // while the present action runs
};

}  // namespace

StepMemory memory(const plan::StepPlan& plan, const MemorySizes& sizes) {
  StepMemory most;
  for (int stage = 0; stage < num_stages(plan.mesh); ++stage) {
    const StepMemory of = MemoryWalk(plan, sizes, stage).take();
    if (stage == 0 || of.peak.total() > most.peak.total()) {
      most = of;
      most.stage = stage;
    }
  }
  return most;
}

StepMemory memory(const plan::AssignedPlan& assigned, const MemorySizes& sizes) {
  std::vector<std::vector<Action>> of_ranks(static_cast<std::size_t>(assigned.plan.mesh.size()));
  std::vector<std::vector<std::size_t>> numbers(of_ranks.size());
  for (const plan::AssignedAction& a : assigned.actions) {
    for (const Rank r : a.ranks) {
      of_ranks[static_cast<std::size_t>(r)].push_back(assigned.plan.actions[a.action]);
      numbers[static_cast<std::size_t>(r)].push_back(a.action);
    }
  }
  StepMemory most;
  plan::StepPlan of_rank = assigned.plan;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    if (of_ranks[r].empty()) continue;  // lost
    of_rank.actions = std::move(of_ranks[r]);
    const int stage = stage_of(of_rank.mesh, static_cast<Rank>(r));
    StepMemory now = MemoryWalk(of_rank, sizes, stage).take();
    if (now.peak.total() <= most.peak.total()) continue;
    most = now;
    most.stage = stage;
    most.peak_action = numbers[r][now.peak_action];
  }
  return most;
}

}  // namespace stormo::analysis
