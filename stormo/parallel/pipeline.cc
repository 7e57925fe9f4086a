// Pipelines.
//
// Idea: layers follow each other, so different workers can hold them, and only the tensors between
// two stages travel. So that all stages compute at the same time, the batch is cut into
// micro-batches, which follow each other through the stages. What a stage computes when is the
// schedule's choice. Here its orders, one for each stage, are merged into one order of the whole
// pipeline, as a computer would do that plays them: so a plan shows what happens at the same time,
// and an order in which stages would wait for each other is found before anything runs. Papers: see
// pipeline_schedule.h.
#include <stormo/parallel/pipeline.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <stormo/parallel/inner_axis.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using Kind = StageStep::Kind;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// What the schedules are merged by; their orders hold for any times.
double time_of(Kind kind) { return kind == Kind::kBackward ? 2 : 1; }

ActionKind action_of(Kind kind) {
  switch (kind) {
    case Kind::kForward: return ActionKind::kForward;
    case Kind::kBackward: return ActionKind::kBackward;
    case Kind::kBackwardInput: return ActionKind::kBackwardInput;
    case Kind::kBackwardWeight: return ActionKind::kBackwardWeight;
  }
  return ActionKind::kForward;
}

/// Merges the orders of all stages into one.
class Merge {
 public:
  Merge(const PipelineShape& shape, ChunkOrder chunks, std::vector<plan::Range> parts,
        plan::StepPlan& out)
      : shape_(shape),
        chunks_(chunks),
        parts_(std::move(parts)),
        out_(out),
        done_(parts_.size(),
              std::vector<std::pair<double, double>>(at(shape.micro_batches), {kNever, kNever})) {}

  Status run(const PipelineSchedule& schedule) {
    std::size_t left = 0;
    for (int s = 0; s < shape_.stages; ++s) {
      orders_.push_back(schedule.order(shape_, s));
      STORMO_RETURN_IF_ERROR(
          check_order(orders_.back(), s).within("schedule '" + schedule.name + "'"));
      left += orders_.back().size();
    }
    next_.resize(orders_.size());
    free_.resize(orders_.size());
    for (; left > 0; --left) {
      const std::optional<int> stage = first_to_start();
      if (!stage) {
        return Status(Code::kBadPlan, "schedule '" + schedule.name +
                                          "': all stages wait for each other; stage 0 for " +
                                          to_text(orders_[0], next_[0]));
      }
      emit(*stage);
    }
    return {};
  }

 private:
  /// Every forward and backward once, the latter in one step or two.
  Status check_order(const std::vector<StageStep>& order, int stage) const {
    std::set<std::tuple<Kind, int, int>> found;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const StageStep& s = order[i];
      const bool is_one = s.micro_batch >= 0 && s.micro_batch < shape_.micro_batches &&
                          s.chunk >= 0 && s.chunk < shape_.chunks;
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

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static std::string to_text(const std::vector<StageStep>& order, std::size_t step) {
    if (step == order.size()) return "nothing";
    const StageStep& s = order[step];
    return "the " + std::string(to_string(action_of(s.kind))) + " of micro-batch " +
           std::to_string(s.micro_batch) + ", chunk " + std::to_string(s.chunk);
  }

  std::size_t part(const StageStep& step, int stage) const {
    return at(part_of(chunks_, shape_, stage, step.chunk));
  }

  /// When what the step needs is computed; kNever: it is not yet.
  double ready(const StageStep& step, int stage) const {
    const std::size_t p = part(step, stage), m = at(step.micro_batch);
    if (step.kind == Kind::kForward) return p == 0 ? 0 : done_[p - 1][m].first;
    if (step.kind == Kind::kBackwardWeight) return done_[p][m].second;
    return p + 1 == parts_.size() ? done_[p][m].first
                                  : std::max(done_[p][m].first, done_[p + 1][m].second);
  }

  std::optional<int> first_to_start() const {
    std::optional<int> best;
    double earliest = kNever;
    for (int s = 0; s < shape_.stages; ++s) {
      if (next_[at(s)] == orders_[at(s)].size()) continue;
      const double start = std::max(free_[at(s)], ready(orders_[at(s)][next_[at(s)]], s));
      if (start >= earliest) continue;
      earliest = start;
      best = s;
    }
    return best;
  }

  void emit(int stage) {
    const StageStep step = orders_[at(stage)][next_[at(stage)]++];
    const std::size_t p = part(step, stage);
    const double end = std::max(free_[at(stage)], ready(step, stage)) + time_of(step.kind);
    free_[at(stage)] = end;
    const plan::Range range = parts_[p];
    add(action_of(step.kind), range, step);
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

  void add(ActionKind kind, plan::Range range, const StageStep& step) {
    out_.actions.push_back({.kind = kind, .range = range, .micro_batch = step.micro_batch});
  }

  /// Across the boundary behind a segment, if that is one.
  void move(ActionKind kind, int segment, const StageStep& step) {
    if (!is_boundary(out_.model, segment)) return;
    add(kind, {segment, segment + 1}, step);
  }

  PipelineShape shape_;
  ChunkOrder chunks_;
  std::vector<plan::Range> parts_;  // of segments, in the order of the model
  plan::StepPlan& out_;
  std::vector<std::vector<StageStep>> orders_;  // by stage
  std::vector<std::size_t> next_;               // by stage
  std::vector<double> free_;                    // by stage
  // by part and micro-batch: when the output and the gradient of the input were there
  std::vector<std::vector<std::pair<double, double>>> done_;
};

std::vector<double> costs_of(const plan::ModelShape& model) {
  std::vector<double> flops, elements;
  for (const plan::SegmentShape& s : model.segments) {
    flops.push_back(static_cast<double>(s.flops_per_sample));
    elements.push_back(static_cast<double>(num_elements(s)));
  }
  return std::ranges::count(flops, 0) == 0 ? flops : elements;
}

/// As many halvings as a double has bits, and some more.
constexpr int kHalvings = 64;

/// Ranges of sums up to `most`, each as long as it may be, so that none is left empty; no ranges if
/// there are not enough.
std::vector<plan::Range> filled(const std::vector<double>& costs, int parts, double most) {
  const int n = static_cast<int>(costs.size());
  std::vector<plan::Range> out;
  int next = 0;
  for (int part = 0; part < parts; ++part) {
    const int first = next;
    const int end = n - (parts - 1 - part);  // others need one each
    double sum = 0;
    while (next < end && (next == first || sum + costs[at(next)] <= most)) sum += costs[at(next++)];
    if (sum > most) return {};
    out.push_back({first, next - 1});
  }
  return next == n ? out : std::vector<plan::Range>();
}

Status check(const plan::StepPlan& in, const Pipeline& how) {
  if (how.stages < 2 || how.stages > plan::kMaxRanks || how.chunks < 1) {
    return invalid_argument("pipeline: " + std::to_string(how.stages) + " stages of " +
                            std::to_string(how.chunks) +
                            " chunks; give at least 2 stages and 1 chunk");
  }
  const std::int64_t computations = 2 * std::int64_t{how.stages} * how.chunks * in.micro_batches;
  if (computations > plan::kMaxActions) {
    return invalid_argument("pipeline: " + std::to_string(computations) +
                            " forwards and backwards; a plan has at most " +
                            std::to_string(plan::kMaxActions) +
                            " actions: use fewer micro-batches, stages or chunks");
  }
  for (const Action& a : in.actions) {
    const bool whole = range_of(a.kind) != plan::RangeOf::kSegments ||
                       (a.range == all_segments(in.model) && a.kind != ActionKind::kRecompute);
    const bool fits = whole && (!a.asynchronous && (a.axes.empty() || a.kind == ActionKind::kNorm));
    if (fits) continue;
    return Status(Code::kBadPlan,
                  "pipeline: apply it before passes that cut computations or reduce gradients");
  }
  return check(how.schedule, {how.stages, in.micro_batches, how.chunks});
}

Result<plan::StepPlan> cut(const plan::StepPlan& in, const Pipeline& how) {
  STORMO_RETURN_IF_ERROR(check(in, how));
  STORMO_ASSIGN_OR_RETURN(const std::vector<plan::Range> parts,
                          balanced(costs_of(in.model), how.stages * how.chunks));
  plan::StepPlan out = in;
  out.strategy += "+pipeline" + std::to_string(how.stages) + "_" + how.schedule.name;
  // stages that follow each other are neighbours, on one host where possible
  STORMO_RETURN_IF_ERROR(
      add_inner_axis(out, "pipeline", {plan::kStageAxis, how.stages}, plan::Placement::kStaged));
  const PipelineShape shape{how.stages, in.micro_batches, how.chunks};
  const ChunkOrder chunks = how.schedule.chunk_order;
  for (int stage = 0; stage < how.stages; ++stage) {
    for (int chunk = 0; chunk < how.chunks; ++chunk) {
      const plan::Range part = parts[at(part_of(chunks, shape, stage, chunk))];
      for (int s = part.first; s <= part.last; ++s) out.model.segments[at(s)].stage = stage;
    }
  }
  const auto first =
      std::ranges::find_if(in.actions, [](const Action& a) { return has_micro_batch(a.kind); });
  const auto last = std::find_if_not(first, in.actions.end(),
                                     [](const Action& a) { return has_micro_batch(a.kind); });
  out.actions.assign(in.actions.begin(), first);
  STORMO_RETURN_IF_ERROR(Merge(shape, chunks, parts, out).run(how.schedule));
  const plan::Stages stages(out.model);
  const auto shapes = flatten(out.model);
  for (int p = 0; p < num_parameters(out.model); ++p) {
    if (!stages.is_tied(p) || !shapes[at(p)]->trainable) continue;
    out.actions.push_back({.kind = ActionKind::kSumTied, .range = {p, p}});
  }
  for (auto a = last; a != in.actions.end(); ++a) {
    out.actions.push_back(*a);
    if (a->kind == ActionKind::kNorm) out.actions.back().axes.push_back(plan::kStageAxis);
  }
  return out;
}

}  // namespace

Result<std::vector<plan::Range>> balanced(const std::vector<double>& costs, int parts) {
  const int n = static_cast<int>(costs.size());
  if (parts < 1 || n < parts) {
    return invalid_argument("the model has " + std::to_string(n) + " segments, too few for " +
                            std::to_string(parts) + " parts of a pipeline; use fewer stages or " +
                            "chunks, or a model of more segments");
  }
  double least = 0, most = 0;  // of the largest sum
  for (const double c : costs) {
    least = std::max(least, c);
    most += c;
  }
  std::vector<plan::Range> out = filled(costs, parts, most);
  for (int i = 0; i < kHalvings && least < most; ++i) {
    const double middle = least + (most - least) / 2;
    std::vector<plan::Range> tried = filled(costs, parts, middle);
    if (tried.empty()) {
      least = middle;
    } else {
      most = middle;
      out = std::move(tried);
    }
  }
  return out;
}

Pass pipeline(const Pipeline& how) {
  return [how](const plan::StepPlan& in) { return cut(in, how); };
}

}  // namespace stormo::parallel
