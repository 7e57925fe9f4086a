// The search for the fastest strategy of a job that fits.
#include <stormo/train/planner/search.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <stormo/base/units.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/plan/project.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/planner/planned_step.h>

namespace stormo::train {
namespace {

using parallel::Candidate;

/// Of micro-batches, that are measured for each number of ranks that compute layers together; what
/// is between them is taken to lie on a line.
constexpr std::size_t kMeasuredSizes = 4;

/// Numbers of ranks that share layers, and positions, and whether the former share positions, too:
/// what one of them computes depends on these.
using RankShares = std::tuple<int, int, bool>;

RankShares rank_shares(const Candidate& c) {
  return {c.strategy.tensor, c.strategy.context, c.strategy.sequence_parallel};
}

/// What one rank takes for micro-batches of some sizes, as one of several. Both forms of attention
/// are taken to take the same time.
class Measurements {
 public:
  /// Of each number of ranks some of the sizes; with `in_parts`, also backwards in two parts.
  Status measure(const SearchJob& job, const std::map<RankShares, std::set<std::int64_t>>& sizes,
                 bool in_parts) {
    std::vector<Wanted> wanted;
    std::vector<RankShares> ranks;
    for (const auto& [shares, all] : sizes) {
      for (const std::int64_t size : some_of(all)) {
        wanted.push_back({options_of(job.options, shares), size, in_parts});
        ranks.push_back(shares);
      }
    }
    STORMO_ASSIGN_OR_RETURN(const std::vector<StepMeasurement> all, job.measure(wanted));
    for (std::size_t i = 0; i < all.size(); ++i) measured_[ranks[i]][wanted[i].samples] = all[i];
    return {};
  }

  StepMeasurement at(const RankShares& ranks, std::int64_t samples) const {
    const auto& of = measured_.at(ranks);
    const auto above = of.lower_bound(samples);  // the largest size is measured
    if (above->first == samples) return above->second;
    const auto below = std::prev(above);
    const double t = static_cast<double>(samples - below->first) /
                     static_cast<double>(above->first - below->first);
    return between(below->second, above->second, t);
  }

 private:
  static std::set<std::int64_t> some_of(const std::set<std::int64_t>& all) {
    const std::vector<std::int64_t> sorted(all.begin(), all.end());
    const std::size_t count = std::min(sorted.size(), kMeasuredSizes);
    std::set<std::int64_t> out;
    for (std::size_t i = 0; i < count; ++i) {
      out.insert(sorted[count == 1 ? 0 : i * (sorted.size() - 1) / (count - 1)]);
    }
    return out;
  }
  static TrainerOptions options_of(TrainerOptions options, const RankShares& ranks) {
    Strategy& s = options.strategy;
    std::tie(s.tensor, s.context, s.sequence_parallel) = ranks;
    s.attention = plan::AttentionForm::kRing;
    s.spatial.clear();  // no candidate has a grid
    return options;
  }

  std::map<RankShares, std::map<std::int64_t, StepMeasurement>> measured_;
};

/// Of what it does, whatever its name is.
std::uint64_t hash_of(plan::StepPlan plan) {
  plan.strategy.clear();
  return hash(plan);
}

Result<comm::StepInput> step_of(const SearchJob& job, const Candidate& c) {
  return planned_step(with(job.options, c), job.task, job.ranks_per_host, 0, job.can_share);
}

/// The ways that the model and the ranks allow, each plan once.
std::vector<Outcome> allowed(const SearchJob& job, Found& found) {
  std::vector<Outcome> out;
  std::set<std::uint64_t> known;
  const std::vector<plan::SegmentShape> segments = shape_of(job.task).segments;
  const bool by_positions =
      std::ranges::all_of(segments, [](const plan::SegmentShape& s) { return s.positions > 0; });
  for (const Candidate& c : parallel::candidates({.ranks_per_host = job.ranks_per_host},
                                                 job.options.global_batch, by_positions)) {
    Result<comm::StepInput> step = step_of(job, c);
    if (!step.ok()) {
      ++found.refused[step.status().message()];
    } else if (known.insert(hash_of(step->plan)).second) {
      out.push_back({.candidate = c, .step = std::move(*step), .peak = {}});
    }
  }
  return out;
}

/// Segments of each part, so that the slowest part takes as little as possible.
std::vector<std::int64_t> cut_by(const analysis::ComputeTimes& times, const Strategy& s) {
  std::vector<double> costs = times.forward;
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] += times.backward[i];
  std::vector<std::int64_t> out;
  for (const plan::Range part : parallel::balanced(costs, s.pipeline * s.chunks).take_or_throw()) {
    out.push_back(part.size());
  }
  return out;
}

/// The ways with stages again, cut by the times that were measured.
void add_measured_cuts(const SearchJob& job,
                       const std::function<StepMeasurement(const Outcome&)>& measured,
                       std::vector<Outcome>& ways) {
  std::set<std::uint64_t> known;
  for (const Outcome& w : ways) known.insert(hash_of(w.step.plan));
  for (std::size_t i = 0, given = ways.size(); i < given; ++i) {
    Candidate c = ways[i].candidate;
    if (c.strategy.pipeline == 1) continue;
    c.strategy.cut = cut_by(measured(ways[i]).times, c.strategy);
    Result<comm::StepInput> step = step_of(job, c);
    if (!step.ok() || !known.insert(hash_of(step->plan)).second) continue;
    ways.push_back({.candidate = c, .step = std::move(*step), .peak = {}});
  }
}

/// The ways, with the sizes and times of their computations.
Result<std::vector<Outcome>> measured_ways(const SearchJob& job, Found& found) {
  std::vector<Outcome> ways = allowed(job, found);
  if (!job.measure) {
    std::map<std::int64_t, std::vector<std::int64_t>> moved;  // by samples
    for (Outcome& w : ways) {
      if (plan::num_stages(w.step.plan.mesh) == 1) continue;
      const auto [known, is_new] = moved.try_emplace(w.step.samples);
      if (is_new) known->second = output_bytes(job.task, job.data, w.step.samples);
      w.step.sizes.outputs = known->second;
    }
    return ways;
  }
  std::map<RankShares, std::set<std::int64_t>> sizes;
  bool in_parts = false;
  for (const Outcome& w : ways) {
    in_parts = in_parts || has_backward_parts(w.step.plan);
    sizes[rank_shares(w.candidate)].insert(std::min(w.step.samples, job.data.size()));
  }
  Measurements measurements;
  STORMO_RETURN_IF_ERROR(measurements.measure(job, sizes, in_parts));
  const auto measured = [&](const Outcome& w) {
    return measurements.at(rank_shares(w.candidate), std::min(w.step.samples, job.data.size()));
  };
  add_measured_cuts(job, measured, ways);
  for (Outcome& w : ways) {
    take_measured(w.step, measured(w));
    w.step.memory.process = job.process;
    w.step.codec = job.codec;
  }
  return ways;
}

Status none_fits(const SearchJob& job, const Found& found) {
  const auto bytes = [](std::int64_t n) { return format_bytes(static_cast<std::uint64_t>(n)); };
  std::string why;
  if (found.smallest) {
    why = fmt::format(
        "none of {} ways fits into {} on each rank; the smallest needs {}: {}; use more ranks, or "
        "smaller micro-batches of a smaller train.global_batch",
        found.too_large, bytes(job.memory), bytes(found.smallest->peak.total()),
        fmt::join(keys_of(found.smallest->candidate, job.options), " "));
  } else {
    why = fmt::format("the model, the ranks and a batch of {} allow no way:",
                      job.options.global_batch);
    for (const auto& [message, times] : found.refused) why += "\n" + message;
  }
  return Status(Code::kExhausted, why);
}

}  // namespace

Result<Found> search(const SearchJob& job, comm::StepModel& model) {
  Found found;
  STORMO_ASSIGN_OR_RETURN(std::vector<Outcome> ways, measured_ways(job, found));
  for (Outcome& w : ways) {
    w.peak = analysis::memory(w.step.plan, w.step.memory).peak;
    if (w.peak.total() > job.memory) {
      ++found.too_large;
      if (!found.smallest || w.peak.total() < found.smallest->peak.total()) found.smallest = w;
      continue;
    }
    STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation s,
                            simulated_as_trained(model, job.options, w.step));
    w.seconds = s.seconds;
    w.idle = s.idle_share();
    found.fitting.push_back(std::move(w));
  }
  if (found.fitting.empty()) return none_fits(job, found);
  // of equal times the one that needs less memory, and then the simpler one
  std::ranges::stable_sort(found.fitting, [](const Outcome& a, const Outcome& b) {
    return std::pair(a.seconds, a.peak.total()) < std::pair(b.seconds, b.peak.total());
  });
  return found;
}

TrainerOptions with(TrainerOptions options, const Candidate& c) {
  options.strategy = c.strategy;
  options.micro_batches = c.micro_batches;
  options.recompute = c.recompute;
  return options;
}

std::vector<std::string> keys_of(const Candidate& c, const TrainerOptions& options) {
  const Strategy &s = c.strategy, &given = options.strategy;
  std::vector<std::string> out;
  const auto add = [&out](bool matters, std::string_view key, const auto& value,
                          const auto& before) {
    if (matters || value != before) out.push_back(fmt::format("{}={}", key, value));
  };
  const auto name = [](const std::vector<std::string>& names, auto choice) {
    return names[static_cast<std::size_t>(choice)];
  };
  const bool stages = s.pipeline > 1;
  add(true, "strategy.kind", name(parallel::strategy_names(), s.kind), "");
  add(ranks_of_replica(s) == 1, "strategy.parameters",
      name(parallel::parameter_names(), s.parameters),
      name(parallel::parameter_names(), given.parameters));
  add(parallel::row_of(s.kind).has_key("stage"), "strategy.stage", s.stage, given.stage);
  add(s.hybrid, "strategy.hybrid", s.hybrid, given.hybrid);
  add(stages, "strategy.pipeline", s.pipeline, given.pipeline);
  add(stages, "strategy.schedule", s.schedule, given.schedule);
  add(s.chunks > 1, "strategy.chunks", s.chunks, given.chunks);
  const auto list = [](const auto& numbers) { return fmt::format("{}", fmt::join(numbers, ",")); };
  add(false, "strategy.spatial", list(s.spatial), list(given.spatial));
  add(false, "strategy.labels", s.labels, given.labels);
  add(false, "strategy.column_counts", list(s.column_counts), list(given.column_counts));
  add(false, "strategy.weight_stashing", s.weight_stashing, given.weight_stashing);
  add(!s.cut.empty(), "strategy.cut", list(s.cut), list(given.cut));
  add(s.tensor > 1, "strategy.tensor", s.tensor, given.tensor);
  add(s.sequence_parallel, "strategy.sequence_parallel", s.sequence_parallel,
      given.sequence_parallel);
  add(s.context > 1, "strategy.context", s.context, given.context);
  add(s.context > 1, "strategy.attention", to_string(s.attention), to_string(given.attention));
  add(true, "train.micro_batches", std::int64_t{c.micro_batches}, options.micro_batches);
  add(c.recompute, "train.recompute", c.recompute, options.recompute);
  return out;
}

}  // namespace stormo::train
