#include <stormo/parallel/pipeline/merge_stages.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using Kind = StageStep::Kind;

/// What the schedules are merged by; their orders hold for any times.
double time_of(Kind kind) { return kind == Kind::kBackward ? 2 : 1; }

/// Whether a schedule can say when it is done.
bool is_step(Kind kind) {
  const plan::ActionRow& row = row_of(kind);
  return (row.runs_forward() && !row.recomputes()) || row.passes_gradient() || row.adds_gradients;
}

/// The trainable parameters that several stages read.
std::vector<int> tied_parameters(const plan::ModelShape& model) {
  std::vector<int> out;
  const plan::Stages stages(model);
  const auto shapes = flatten(model);
  for (int p = 0; p < num_parameters(model); ++p) {
    if (stages.is_tied(p) && shapes[at(p)]->trainable) out.push_back(p);
  }
  return out;
}

/// Merges the orders of all stages into one.
class Merge {
 public:
  Merge(const PipelineSchedule& schedule, const PipelineShape& shape,
        const std::vector<plan::Range>& parts, plan::StepPlan& out)
      : schedule_(schedule),
        shape_(shape),
        parts_(parts),
        out_(out),
        stages_(out.model),
        next_(at(shape.stages)),
        free_(at(shape.stages)),
        delays_(parts_.size(), std::vector<int>(at(shape.micro_batches))),
        done_(parts_.size(),
              std::vector<std::pair<double, double>>(at(shape.micro_batches), {kNever, kNever})) {
    if (schedule.overlap) tied_ = tied_parameters(out.model);
  }

  Status run() {
    std::size_t left = 0;
    for (int s = 0; s < shape_.stages; ++s) {
      orders_.push_back(schedule_.order(shape_, s));
      STORMO_RETURN_IF_ERROR(check_order(orders_.back(), s).within(name()));
      left += orders_.back().size();
      note_delays(s);
    }
    STORMO_RETURN_IF_ERROR(check_tied().within(name()));
    for (; left > 0; --left) {
      const std::optional<int> stage = first_to_start();
      if (!stage) {
        return Status(Code::kBadPlan, name() + ": all stages wait for each other; stage 0 for " +
                                          to_text(orders_[0], next_[0]));
      }
      emit(*stage);
    }
    append_updates(kNever);
    return {};
  }

 private:
  /// Where steps overlap: when a stage adds to the gradients of a batch, and when it updates.
  struct Updates {
    std::size_t first = 0, last = 0;  // steps in its order that add for the first and last time
    int delay = 0;                    // of the update
    bool at_once = true;  // after the last step; else before the first one, of the next batch
    double done = kNever;
    bool is_due = false;  // and not yet in the plan
  };

  std::string name() const { return "schedule '" + schedule_.name + "'"; }

  /// Every forward and backward once, the latter in one step or two.
  Status check_order(const std::vector<StageStep>& order, int stage) const {
    std::set<std::tuple<Kind, int, int>> found;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const StageStep& s = order[i];
      const bool is_one = is_step(s.kind) && s.micro_batch >= 0 &&
                          s.micro_batch < shape_.micro_batches && s.chunk >= 0 &&
                          s.chunk < shape_.chunks;
      const int most = s.kind == Kind::kForward || !schedule_.overlap ? 0 : plan::kMaxDelay;
      if (s.delay < 0 || s.delay > most) {
        return Status(Code::kBadPlan, "stage " + std::to_string(stage) + " computes " +
                                          to_text(order, i) + " " + std::to_string(s.delay) +
                                          " steps late; at most " + std::to_string(most));
      }
      if (is_one && found.insert({s.kind, s.micro_batch, s.chunk}).second) continue;
      return Status(Code::kBadPlan, "stage " + std::to_string(stage) + " computes " +
                                        to_text(order, i) +
                                        (is_one ? " twice" : ", which is none"));
    }
    for (int m = 0; m < shape_.micro_batches; ++m) {
      for (int c = 0; c < shape_.chunks; ++c) {
        const auto has = [&](Kind kind) { return found.contains({kind, m, c}); };
        const bool whole = has(Kind::kBackward);
        const bool input = has(Kind::kBackwardInput), weight = has(Kind::kBackwardWeight);
        if (has(Kind::kForward) && input == weight && whole != input) continue;
        return Status(Code::kBadPlan, "stage " + std::to_string(stage) +
                                          " does not compute one forward and one "
                                          "backward of micro-batch " +
                                          std::to_string(m) + ", chunk " + std::to_string(c));
      }
    }
    return {};
  }

  void note_delays(int stage) {
    const std::vector<StageStep>& order = orders_.back();
    Updates updates;
    std::optional<std::size_t> first, last;
    const auto later = [&](std::size_t a, std::size_t b) {  // of one batch
      return std::pair(order[a].delay, a) > std::pair(order[b].delay, b);
    };
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (row_of(order[i].kind).passes_gradient()) {
        delays_[part(order[i], stage)][at(order[i].micro_batch)] = order[i].delay;
      }
      if (!row_of(order[i].kind).adds_gradients) continue;
      if (!first || later(*first, i)) first = i;
      if (!last || later(i, *last)) last = i;
    }
    updates.first = *first;
    updates.last = *last;
    updates.delay = std::max(order[*last].delay, schedule_.overlap.value_or(0));
    updates.at_once = updates.delay == order[*last].delay;
    updates_.push_back(updates);
  }

  /// The first stage that reads a parameter is the last one to have its gradient: then all of them
  /// update it, before they add to that of the next batch.
  Status check_tied() const {
    for (const int p : tied_) {
      const std::vector<int>& readers = stages_.of_parameter(p);
      for (const int s : readers) {
        const int first = orders_[at(s)][updates_[at(s)].first].delay;
        if (updates_[at(readers.front())].delay <= first + 1) continue;
        return invalid_argument(
            "stages " + std::to_string(readers.front()) + " and " + std::to_string(s) +
            " read the same parameter, and are several batches apart; use 'pipedream' with at "
            "least " +
            std::to_string(shape_.stages - 1) + " micro-batches, or a model without tied weights");
      }
    }
    return {};
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static std::string to_text(const std::vector<StageStep>& order, std::size_t step) {
    if (step == order.size()) return "nothing";
    const StageStep& s = order[step];
    return "the " + std::string(to_string(s.kind)) + " of micro-batch " +
           std::to_string(s.micro_batch) + ", chunk " + std::to_string(s.chunk);
  }

  std::size_t part(const StageStep& step, int stage) const {
    return at(part_of(schedule_.chunk_order, shape_, stage, step.chunk));
  }

  /// When what the step needs is computed; kNever: it is not yet. What has a shorter delay was
  /// computed in a step before.
  double ready(const StageStep& step, int stage) const {
    const std::size_t p = part(step, stage), m = at(step.micro_batch);
    if (step.kind == Kind::kForward) return p == 0 ? 0 : done_[p - 1][m].first;
    if (step.kind == Kind::kBackwardWeight) {
      return delays_[p][m] < step.delay ? 0 : done_[p][m].second;
    }
    double out = step.delay > 0 ? 0 : done_[p][m].first;
    if (p + 1 < parts_.size() && delays_[p + 1][m] == step.delay) {
      out = std::max(out, done_[p + 1][m].second);
    }
    return next_[at(stage)] == updates_[at(stage)].first ? std::max(out, tied_updated(stage)) : out;
  }

  /// When parameters that a stage reads, and does not own, have the update that has to come before
  /// its gradients of the next batch.
  double tied_updated(int stage) const {
    double out = 0;
    const int next = orders_[at(stage)][updates_[at(stage)].first].delay + 1;
    for (const int p : tied_) {
      const std::vector<int>& readers = stages_.of_parameter(p);
      const Updates& owner = updates_[at(readers.front())];
      const bool waits = std::ranges::count(readers, stage) > 0 && readers.front() != stage;
      if (waits && owner.delay == next) out = std::max(out, owner.done);
    }
    return out;
  }

  /// When the next step of a stage can start; kNever: not yet known.
  double start_of(int stage) const {
    return std::max(free_[at(stage)], ready(orders_[at(stage)][next_[at(stage)]], stage));
  }

  std::optional<int> first_to_start() const {
    std::optional<int> best;
    double earliest = kNever;
    for (int s = 0; s < shape_.stages; ++s) {
      if (next_[at(s)] == orders_[at(s)].size()) continue;
      const double start = start_of(s);
      if (start >= earliest) continue;
      earliest = start;
      best = s;
    }
    return best;
  }

  void emit(int stage) {
    Updates& updates = updates_[at(stage)];
    const std::size_t number = next_[at(stage)];
    const StageStep step = orders_[at(stage)][number];
    if (number == updates.first && !updates.at_once) update(stage);
    append_updates(start_of(stage));
    compute(step, stage);
    if (number == updates.last && updates.at_once) update(stage);
    ++next_[at(stage)];
  }

  void compute(const StageStep& step, int stage) {
    const std::size_t p = part(step, stage);
    const double end = start_of(stage) + time_of(step.kind);
    free_[at(stage)] = end;
    const plan::Range range = parts_[p];
    add(step.kind, range, step);
    if (step.kind == Kind::kBackwardWeight) return;
    const bool forward = step.kind == Kind::kForward;
    auto& done = done_[p][at(step.micro_batch)];
    (forward ? done.first : done.second) = end;
    if (forward && p + 1 == parts_.size()) add(ActionKind::kLoss, {}, step);
    if (forward) {
      move(ActionKind::kMoveActivation, range.last, step);
    } else {
      move(ActionKind::kMoveGradient, range.first - 1, step);
    }
  }

  /// The stage has all gradients of a batch. Where steps overlap, it updates by itself.
  void update(int stage) {
    updates_[at(stage)].done = free_[at(stage)];
    updates_[at(stage)].is_due = schedule_.overlap.has_value();
  }

  /// The updates due until then. Not earlier: other stages that read the same parameter take part,
  /// and would wait before computations that do not need it.
  void append_updates(double time) {
    for (int s = 0; s < shape_.stages; ++s) {
      Updates& updates = updates_[at(s)];
      if (!updates.is_due || updates.done > time) continue;
      append_update(s);
      updates.is_due = false;
    }
  }

  void append_update(int stage) {
    const Updates& updates = updates_[at(stage)];
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      const plan::Range own = parameters_of(
          out_.model, parts_[at(part_of(schedule_.chunk_order, shape_, stage, chunk))]);
      if (own.size() == 0) continue;
      all_reduce_tied(out_, own, updates.delay);
      out_.actions.push_back({.kind = ActionKind::kUpdate, .range = own, .delay = updates.delay});
    }
  }

  void add(ActionKind kind, plan::Range range, const StageStep& step) {
    out_.actions.push_back(
        {.kind = kind, .range = range, .micro_batch = step.micro_batch, .delay = step.delay});
  }

  /// Across the boundary behind a segment, if that is one.
  void move(ActionKind kind, int segment, const StageStep& step) {
    if (!is_boundary(out_.model, segment)) return;
    add(kind, {segment, segment + 1}, step);
  }

  const PipelineSchedule& schedule_;
  PipelineShape shape_;
  const std::vector<plan::Range>& parts_;  // of segments, in the order of the model
  plan::StepPlan& out_;
  plan::Stages stages_;
  std::vector<int> tied_;                       // parameters, where steps overlap
  std::vector<std::vector<StageStep>> orders_;  // by stage
  std::vector<std::size_t> next_;               // by stage
  std::vector<double> free_;                    // by stage
  std::vector<Updates> updates_;                // by stage
  std::vector<std::vector<int>> delays_;        // of backwards, by part and micro-batch
  // by part and micro-batch: when the output and the gradient of the input were there
  std::vector<std::vector<std::pair<double, double>>> done_;
};

}  // namespace

Status merge_stages(const PipelineSchedule& schedule, const PipelineShape& shape,
                    const std::vector<plan::Range>& parts, plan::StepPlan& plan) {
  return Merge(schedule, shape, parts, plan).run();
}

void all_reduce_tied(plan::StepPlan& plan, plan::Range parameters, int delay) {
  for (const int p : tied_parameters(plan.model)) {
    if (p < parameters.first || p > parameters.last) continue;
    plan.actions.push_back({.kind = ActionKind::kAllReduceTied, .range = {p, p}, .delay = delay});
  }
}

}  // namespace stormo::parallel
