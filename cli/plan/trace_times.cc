#include <cli/plan/trace_times.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include <stormo/base/event.h>
#include <stormo/plan/project.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using plan::Action;
using plan::ActionKind;
using plan::Value;

constexpr std::size_t kWarmUp = 2;

bool is_timed(ActionKind kind) {
  const plan::ActionRow& row = row_of(kind);
  const bool makes =
      row.makes.has(Value::kBatch) || row.makes.has(Value::kNorm) || row.makes.has(Value::kUpdated);
  return makes || (row.micro_batch && !row.moves());
}

/// An Event of a trace; in microseconds.
struct Span {
  std::string name;
  double start = 0, duration = 0;
  double end() const { return start + duration; }
};

/// Of one rank in one step.
struct Spans {
  std::vector<Span> computations, waits;
  double start = 0, end = 0;  // of all

  void add(const std::string& lane, Span span) {
    start = end == 0 ? span.start : std::min(start, span.start);
    end = std::max(end, span.end());
    if (lane == to_string(Lane::kCompute) || lane == to_string(Lane::kData)) {
      computations.push_back(std::move(span));
    } else if (lane == to_string(Lane::kWait)) {
      waits.push_back(std::move(span));
    }
  }
  double waited_in(const Span& span) const {
    double sum = 0;
    for (const Span& w : waits) {
      if (w.start >= span.start && w.start < span.end()) sum += w.duration;
    }
    return sum;
  }
};
using SpansOfSteps = std::map<std::int64_t, std::vector<Spans>>;  // by step, then rank

Result<SpansOfSteps> read(const std::string& path, std::size_t ranks) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("cannot read '" + path + "'");
  SpansOfSteps out;
  try {
    const json trace = json::parse(file);
    for (const json& e : trace.at("traceEvents")) {
      if (e.at("ph") != "X") continue;
      const json& args = e.at("args");
      std::vector<Spans>& step = out[args.at("step").get<std::int64_t>()];
      step.resize(ranks);
      const auto rank = e.at("pid").get<std::size_t>();
      if (rank >= ranks) {
        return invalid_argument(
            fmt::format("'{}' has a rank {}, the plan has {} rank(s): give -n as in that run", path,
                        rank, ranks));
      }
      step[rank].add(e.at("cat"), {.name = e.at("name"),
                                   .start = e.at("ts").get<double>(),
                                   .duration = e.at("dur").get<double>()});
    }
  } catch (const json::exception&) {
    return invalid_argument("'" + path + "' is no trace of 'stormo train --trace'");
  }
  return out;
}

/// By rank: the actions of the plan that it computes.
std::vector<std::vector<std::size_t>> computed_by(const plan::StepPlan& plan) {
  const plan::Stages stages(plan.model);
  std::vector<std::vector<std::size_t>> out;
  for (Rank r = 0; r < plan.mesh.size(); ++r) {
    out.emplace_back();
    for (std::size_t i = 0; i < plan.actions.size(); ++i) {
      const Action& a = plan.actions[i];
      if (is_timed(a.kind) && stages.concern(a, stage_of(plan.mesh, r))) out.back().push_back(i);
    }
  }
  return out;
}

/// Whether these are the computations of the plan, in its order; then their times are added.
bool add_rank(const plan::StepPlan& plan, const std::vector<std::size_t>& actions, Spans spans,
              TracedStep& step) {
  std::ranges::sort(spans.computations, {}, &Span::start);
  const auto is = [&plan](const Span& span, std::size_t action) {
    return span.name == to_string(plan.actions[action].kind);
  };
  if (!std::ranges::equal(spans.computations, actions, is)) return false;
  step.seconds = std::max(step.seconds, (spans.end - spans.start) / 1e6);
  std::vector<double>& compute = step.compute.emplace_back(plan.actions.size());
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Span& span = spans.computations[i];
    compute[actions[i]] = (span.duration - spans.waited_in(span)) / 1e6;
  }
  return true;
}

}  // namespace

double TracedStep::idle_share() const {
  double computed = 0;
  for (const std::vector<double>& rank : compute) {
    computed = std::accumulate(rank.begin(), rank.end(), computed);
  }
  return 1 - computed / (seconds * static_cast<double>(compute.size()));
}

Result<std::vector<TracedStep>> traced_steps(const std::string& path, const plan::StepPlan& plan) {
  if (longest_delay(plan) > 0) {
    return invalid_argument(
        "--trace: the steps of an asynchronous pipeline overlap; leave it out, or take a schedule "
        "whose steps do not");
  }
  STORMO_ASSIGN_OR_RETURN(const SpansOfSteps all,
                          read(path, static_cast<std::size_t>(plan.mesh.size())));
  const std::vector<std::vector<std::size_t>> actions = computed_by(plan);
  std::vector<TracedStep> out;
  for (const auto& [number, ranks] : all) {
    TracedStep step;
    std::size_t r = 0;
    while (r < ranks.size() && add_rank(plan, actions[r], ranks[r], step)) ++r;
    if (r == ranks.size()) out.push_back(std::move(step));
  }
  if (out.empty()) {
    return invalid_argument("'" + path +
                            "' has no step of this plan: give the recipe, the changes and -n of "
                            "the run that it is of");
  }
  if (out.size() > kWarmUp) out.erase(out.begin(), out.begin() + kWarmUp);
  return out;
}

TracedStep mean_of(const std::vector<TracedStep>& steps) {
  TracedStep out = steps.front();
  for (std::size_t s = 1; s < steps.size(); ++s) {
    out.seconds += steps[s].seconds;
    for (std::size_t r = 0; r < out.compute.size(); ++r) {
      for (std::size_t i = 0; i < out.compute[r].size(); ++i) {
        out.compute[r][i] += steps[s].compute[r][i];
      }
    }
  }
  const auto count = static_cast<double>(steps.size());
  out.seconds /= count;
  for (std::vector<double>& rank : out.compute) {
    for (double& seconds : rank) seconds /= count;
  }
  return out;
}

std::function<double(Rank, const Action&)> compute_times(const plan::StepPlan& plan,
                                                         const TracedStep& step) {
  std::map<std::pair<ActionKind, int>, std::vector<std::size_t>> like;  // with the micro-batch
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    if (is_timed(a.kind)) like[{a.kind, a.micro_batch}].push_back(i);
  }
  return [&plan, &step, like = std::move(like)](Rank rank, const Action& a) -> double {
    const auto found = like.find({a.kind, a.micro_batch});
    if (found == like.end()) return 0;
    for (const std::size_t i : found->second) {
      const plan::Range whole = plan.actions[i].range;
      if (a.range.first < whole.first || a.range.last > whole.last) continue;
      const double all = step.compute[static_cast<std::size_t>(rank)][i];
      return all * a.range.size() / whole.size();
    }
    return 0;
  };
}

}  // namespace stormo::cli
