// Pipelines.
//
// Idea: layers follow each other, so different workers can hold them, and only the tensors between
// two stages travel. So that all stages compute at the same time, the batch is cut into
// micro-batches, which follow each other through the stages. What a stage computes when is the
// schedule's choice. Here its orders, one for each stage, are merged into one order of the whole
// pipeline, as a computer would do that plays them: so a plan shows what happens at the same time,
// and an order in which stages would wait for each other is found before anything runs. Papers: see
// pipeline_schedule.h.
#include <stormo/parallel/pipeline/pipeline.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/parallel/axes.h>
#include <stormo/parallel/pipeline/merge_stages.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;

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

/// Parts of as many segments as `cut` says.
Result<std::vector<plan::Range>> given(const std::vector<std::int64_t>& cut, int parts,
                                       std::int64_t segments) {
  std::vector<plan::Range> out;
  std::int64_t next = 0;
  for (const std::int64_t count : cut) {
    if (count < 1 || count > segments - next) break;
    out.push_back({static_cast<int>(next), static_cast<int>(next + count - 1)});
    next += count;
  }
  if (std::ssize(out) == parts && out.size() == cut.size() && next == segments) return out;
  std::string text;
  for (const std::int64_t count : cut) text += (text.empty() ? "" : ", ") + std::to_string(count);
  return invalid_argument("pipeline: the cut (strategy.cut) is into parts of " + text +
                          " segments; the model has " + std::to_string(segments) +
                          " segments for " + std::to_string(parts) +
                          " parts of a pipeline (stages * chunks): give as many numbers, of at "
                          "least 1, that add up to " +
                          std::to_string(segments));
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
  if (how.schedule.overlap && (in.clipped || in.scaled_loss)) {
    return invalid_argument("schedule '" + how.schedule.name +
                            "' lets each stage update by itself, so " +
                            "no step has the norm of all gradients: leave out " +
                            (in.clipped ? "clip_norm" : "float16") + ", or use another schedule");
  }
  if (!how.weight_stashing && !how.schedule.overlap) {
    return invalid_argument("schedule '" + how.schedule.name +
                            "' has no updates between a forward and its backward, so there is "
                            "nothing to stash: leave out weight_stashing");
  }
  if (how.period < 1 || how.period > plan::kMaxPeriod) {
    return invalid_argument("pipeline: period " + std::to_string(how.period) + "; give 1 to " +
                            std::to_string(plan::kMaxPeriod) + " steps");
  }
  for (const Action& a : in.actions) {
    const bool whole = row_of(a.kind).range != plan::RangeOf::kSegments ||
                       (a.range == all_segments(in.model) && !row_of(a.kind).recomputes());
    const bool fits = whole && !a.asynchronous && (a.axes.empty() || makes(a, plan::Value::kNorm));
    if (fits) continue;
    return Status(Code::kBadPlan,
                  "pipeline: apply it before passes that cut computations or reduce gradients");
  }
  return check(how.schedule, {how.stages, in.micro_batches, how.chunks});
}

Result<plan::StepPlan> cut(const plan::StepPlan& in, const Pipeline& how) {
  STORMO_RETURN_IF_ERROR(check(in, how));
  const int wanted = how.stages * how.chunks;
  STORMO_ASSIGN_OR_RETURN(const std::vector<plan::Range> parts,
                          how.cut.empty() ? balanced(costs_of(in.model), wanted)
                                          : given(how.cut, wanted, std::ssize(in.model.segments)));
  plan::StepPlan out = in;
  out.strategy += "+pipeline" + std::to_string(how.stages) + "_" + how.schedule.name;
  out.newest_weights = !how.weight_stashing;
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
      std::ranges::find_if(in.actions, [](const Action& a) { return row_of(a.kind).micro_batch; });
  const auto last = std::find_if_not(first, in.actions.end(),
                                     [](const Action& a) { return row_of(a.kind).micro_batch; });
  out.actions.assign(in.actions.begin(), first);
  STORMO_RETURN_IF_ERROR(merge_stages(how.schedule, shape, parts, out));
  if (!how.schedule.overlap) all_reduce_tied(out, all_parameters(out.model));
  for (auto a = last; a != in.actions.end(); ++a) {
    if (how.schedule.overlap && makes(*a, plan::Value::kUpdated))
      continue;  // each stage has its own
    out.actions.push_back(*a);
    if (makes(*a, plan::Value::kNorm)) out.actions.back().axes.push_back(plan::kStageAxis);
    if (how.schedule.overlap && row_of(a->kind).all_batches) out.actions.back().every = how.period;
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
