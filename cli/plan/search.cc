// `stormo plan search`: the fastest strategy of a recipe that fits.
#include <cli/plan/search.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <tuple>
#include <utility>

#include <cli/output_path.h>
#include <cli/plan/found.h>
#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <cli/plan/recipe.h>
#include <cli/plan/step.h>
#include <stormo/base/replace_file.h>
#include <stormo/base/units.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/search/candidates.h>
#include <stormo/plan/project.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/estimate/measure_together.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/prepare/recipe_task.h>

namespace stormo::cli {
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
  Status measure(const train::RanksOfHost& host, const train::Recipe& recipe,
                 const train::Task& task, const data::Dataset& data,
                 const std::map<RankShares, std::set<std::int64_t>>& sizes, bool in_parts) {
    std::vector<train::Wanted> wanted;
    std::vector<RankShares> ranks;
    for (const auto& [shares, all] : sizes) {
      for (const std::int64_t size : some_of(all)) {
        wanted.push_back({options_of(recipe, shares), size, in_parts});
        ranks.push_back(shares);
      }
    }
    STORMO_ASSIGN_OR_RETURN(const std::vector<train::StepMeasurement> all,
                            measure_here(host, task, data, wanted));
    for (std::size_t i = 0; i < all.size(); ++i) measured_[ranks[i]][wanted[i].samples] = all[i];
    return {};
  }

  train::StepMeasurement at(const RankShares& ranks, std::int64_t samples) const {
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
  static train::TrainerOptions options_of(const train::Recipe& recipe, const RankShares& ranks) {
    train::TrainerOptions options = recipe.train;
    train::Strategy& s = options.strategy;
    std::tie(s.tensor, s.context, s.sequence_parallel) = ranks;
    s.attention = plan::AttentionForm::kRing;
    s.spatial.clear();  // no candidate has a grid
    return options;
  }

  std::map<RankShares, std::map<std::int64_t, train::StepMeasurement>> measured_;
};

train::Recipe with(train::Recipe recipe, const Candidate& c) {
  recipe.train.strategy = c.strategy;
  recipe.train.micro_batches = c.micro_batches;
  recipe.train.recompute = c.recompute;
  return recipe;
}

/// Of what it does, whatever its name is.
std::uint64_t hash_of(plan::StepPlan plan) {
  plan.strategy.clear();
  return hash(plan);
}

/// The ways that the model and the ranks allow, each plan once.
std::vector<Outcome> allowed(const train::Recipe& recipe, const train::Task& task,
                             const std::vector<int>& ranks_per_host, Found& found) {
  std::vector<Outcome> out;
  std::set<std::uint64_t> known;
  const std::vector<plan::SegmentShape> segments = shape_of(task).segments;
  const bool by_positions =
      std::ranges::all_of(segments, [](const plan::SegmentShape& s) { return s.positions > 0; });
  for (const Candidate& c : parallel::candidates({.ranks_per_host = ranks_per_host},
                                                 recipe.train.global_batch, by_positions)) {
    Result<StepInput> step = step_of_recipe(with(recipe, c), task, ranks_per_host, 0);
    if (!step.ok()) {
      ++found.refused[step.status().message()];
    } else if (known.insert(hash_of(step->plan)).second) {
      out.push_back({.candidate = c, .step = std::move(*step), .peak = {}});
    }
  }
  return out;
}

void take_measured(StepInput& step, const train::StepMeasurement& m) {
  step.measured = m.times;
  step.memory.activations = m.activations;
  step.memory.outputs = m.outputs;
  step.sizes.outputs = m.outputs;
}

/// Segments of each part, so that the slowest part takes as little as possible.
std::vector<std::int64_t> cut_by(const analysis::ComputeTimes& times, const train::Strategy& s) {
  std::vector<double> costs = times.forward;
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] += times.backward[i];
  std::vector<std::int64_t> out;
  for (const plan::Range part : parallel::balanced(costs, s.pipeline * s.chunks).take_or_throw()) {
    out.push_back(part.size());
  }
  return out;
}

/// The ways with stages again, cut by the times that were measured.
void add_measured_cuts(const train::Recipe& recipe, const train::Task& task,
                       const std::vector<int>& ranks_per_host,
                       const std::function<train::StepMeasurement(const Outcome&)>& measured,
                       std::vector<Outcome>& ways) {
  std::set<std::uint64_t> known;
  for (const Outcome& w : ways) known.insert(hash_of(w.step.plan));
  for (std::size_t i = 0, given = ways.size(); i < given; ++i) {
    Candidate c = ways[i].candidate;
    if (c.strategy.pipeline == 1) continue;
    c.strategy.cut = cut_by(measured(ways[i]).times, c.strategy);
    Result<StepInput> step = step_of_recipe(with(recipe, c), task, ranks_per_host, 0);
    if (!step.ok() || !known.insert(hash_of(step->plan)).second) continue;
    ways.push_back({.candidate = c, .step = std::move(*step), .peak = {}});
  }
}

Result<Found> search(const PlanOptions& o, const train::Recipe& recipe, const train::Task& task,
                     const data::Dataset& data, const std::vector<int>& ranks_per_host,
                     std::int64_t memory) {
  Found found;
  const auto process = static_cast<std::int64_t>(launch::own_memory());
  std::vector<Outcome> ways = allowed(recipe, task, ranks_per_host, found);
  Measurements measurements;
  const auto measured = [&](const Outcome& w) {
    return measurements.at(rank_shares(w.candidate), std::min(w.step.samples, data.size()));
  };
  if (o.measured) {
    std::map<RankShares, std::set<std::int64_t>> sizes;
    bool in_parts = false;
    for (const Outcome& w : ways) {
      in_parts = in_parts || has_backward_parts(w.step.plan);
      sizes[rank_shares(w.candidate)].insert(std::min(w.step.samples, data.size()));
    }
    STORMO_ASSIGN_OR_RETURN(const train::RanksOfHost host, measured_host(recipe, ranks_per_host));
    STORMO_RETURN_IF_ERROR(measurements.measure(host, recipe, task, data, sizes, in_parts));
    add_measured_cuts(recipe, task, ranks_per_host, measured, ways);
  }
  std::map<std::int64_t, std::vector<std::int64_t>> moved;  // by samples
  for (Outcome& w : ways) {
    if (o.measured) {
      take_measured(w.step, measured(w));
      w.step.memory.process = process;
    } else if (plan::num_stages(w.step.plan.mesh) > 1) {
      const auto [known, is_new] = moved.try_emplace(w.step.samples);
      if (is_new) known->second = train::output_bytes(task, data, w.step.samples);
      w.step.sizes.outputs = known->second;
    }
    w.peak = analysis::memory(w.step.plan, w.step.memory).peak;
    if (w.peak.total() > memory) {
      ++found.too_large;
      if (!found.smallest || w.peak.total() < found.smallest->peak.total()) found.smallest = w;
      continue;
    }
    STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation s,
                            simulated_as_trained(o, recipe.train, w.step));
    w.seconds = s.seconds;
    w.idle = s.idle_share();
    found.fitting.push_back(std::move(w));
  }
  // of equal times the one that needs less memory, and then the simpler one
  std::ranges::stable_sort(found.fitting, [](const Outcome& a, const Outcome& b) {
    return std::pair(a.seconds, a.peak.total()) < std::pair(b.seconds, b.peak.total());
  });
  return found;
}

/// One process on the whole batch: with all cores of this host, or with one thread if that is
/// faster, as it is for small models and on busy machines.
Result<OneProcess> alone(const train::Recipe& recipe, const train::Task& task,
                         const data::Dataset& data) {
  train::Wanted whole{recipe.train, std::min(recipe.train.global_batch, data.size())};
  whole.options.strategy = {};
  STORMO_ASSIGN_OR_RETURN(const train::RanksOfHost host, measured_host(recipe, {1}));
  std::optional<OneProcess> best;
  for (const int threads : std::set<int>{1, host.threads}) {
    STORMO_ASSIGN_OR_RETURN(const std::vector<train::StepMeasurement> measured,
                            measure_here({.ranks = 1, .threads = threads}, task, data, {whole}));
    const analysis::ComputeTimes& t = measured[0].times;
    const double seconds = std::accumulate(t.forward.begin(), t.forward.end(), 0.0) +
                           std::accumulate(t.backward.begin(), t.backward.end(), 0.0) + t.load +
                           t.loss + t.update;
    if (!best || seconds < best->seconds) best = OneProcess{threads, seconds};
  }
  return *best;
}

Status write_recipe(const PlanOptions& o, const train::Recipe& recipe, const Candidate& best) {
  if (o.write.empty()) return {};
  return replace_file(o.write,
                      [&](std::ostream& file) { file << train::to_toml(with(recipe, best)); });
}

Status none_fits(const train::Recipe& recipe, const Found& found, std::int64_t memory) {
  std::string why;
  if (found.smallest) {
    why = fmt::format(
        "none of {} ways fits into {} on each rank; the smallest needs {}: {}; use more ranks, or "
        "smaller micro-batches of a smaller train.global_batch",
        found.too_large, bytes_text(memory), bytes_text(found.smallest->peak.total()),
        fmt::join(keys_of(found.smallest->candidate, recipe), " "));
  } else {
    why = fmt::format("the model, the ranks and a batch of {} allow no way:",
                      recipe.train.global_batch);
    for (const auto& [message, times] : found.refused) why += "\n" + message;
  }
  return Status(Code::kExhausted, why);
}

}  // namespace

Result<std::vector<std::string>> fastest_keys(const PlanOptions& o, const train::Recipe& recipe,
                                              const train::Task& task, const data::Dataset& data,
                                              const std::vector<int>& ranks_per_host,
                                              std::int64_t memory) {
  PlanOptions measured = o;
  measured.measured = true;
  STORMO_ASSIGN_OR_RETURN(const Found found,
                          search(measured, recipe, task, data, ranks_per_host, memory));
  if (found.fitting.empty()) return none_fits(recipe, found, memory);
  return keys_of(found.fitting.front().candidate, recipe);
}

std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host) {
  const auto here = static_cast<std::uint64_t>(*std::ranges::max_element(ranks_per_host));
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(available / here + launch::own_memory(), INT64_MAX));
}

Status search_plans(const PlanOptions& options) {
  PlanOptions o = options;
  o.measured = o.gflops == 0;
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology topology, load_topology(o, ranks));
  const std::vector<int>& ranks_per_host = topology.host_sizes;
  std::int64_t memory = memory_of_a_rank(launch::available_memory(), ranks_per_host);
  if (!o.memory.empty()) {
    const Result<std::uint64_t> bytes = parse_bytes(o.memory);
    if (!bytes.ok()) return bytes.status().within("--memory");
    memory = static_cast<std::int64_t>(std::min<std::uint64_t>(*bytes, INT64_MAX));
  }
  if (!o.write.empty()) STORMO_RETURN_IF_ERROR(check_output_path(o.write).within("--write"));
  if (!is_recipe(o.plan)) {
    return invalid_argument("search: '" + o.plan + "' is no recipe; give a file NAME.toml");
  }
  STORMO_ASSIGN_OR_RETURN(const LoadedRecipe loaded, load_recipe(o, ranks, /*any_strategy=*/true));
  const auto& [recipe, data, task] = loaded;
  STORMO_ASSIGN_OR_RETURN(const Found found,
                          search(o, recipe, task, *data.train, ranks_per_host, memory));
  if (found.fitting.empty()) return none_fits(recipe, found, memory);
  std::optional<OneProcess> one_process;
  if (o.measured) {
    STORMO_ASSIGN_OR_RETURN(one_process, alone(recipe, task, *data.train));
  }
  if (o.json) {
    print_found_json(found, recipe, one_process);
  } else {
    STORMO_RETURN_IF_ERROR(print_found(o, found, recipe, memory, one_process));
  }
  return write_recipe(o, recipe, found.fitting.front().candidate);
}

}  // namespace stormo::cli
