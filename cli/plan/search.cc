// `stormo plan search`: the fastest strategy of a recipe that fits.
#include <cli/plan/search.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <utility>

#include <cli/output_path.h>
#include <cli/plan/found.h>
#include <cli/plan/load.h>
#include <cli/plan/recipe.h>
#include <cli/plan/step.h>
#include <cli/plan/ways.h>
#include <stormo/base/replace_file.h>
#include <stormo/base/units.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/train/planner/measure_on_ranks.h>
#include <stormo/train/planner/search.h>

namespace stormo::cli {
namespace {

/// A search on hosts like this one; with `measured`, times are those of steps here.
Result<train::Found> search(bool measured, const train::Recipe& recipe, const train::Task& task,
                            const data::Dataset& data, const std::vector<int>& ranks_per_host,
                            std::int64_t memory, comm::StepModel& model) {
  train::SearchJob job{.options = recipe.train,
                       .task = task,
                       .data = data,
                       .ranks_per_host = ranks_per_host,
                       .memory = memory,
                       .process = static_cast<std::int64_t>(launch::own_memory())};
  if (measured) {
    STORMO_ASSIGN_OR_RETURN(const train::RanksOfHost host, measured_host(recipe, ranks_per_host));
    job.codec = measure_speed(recipe.train.gradients.codec);
    job.measure = [&, host](const std::vector<train::Wanted>& wanted) {
      return measure_here(host, task, data, wanted);
    };
  }
  return train::search(job, model);
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

constexpr train::OpenKeys kOpenCodec{.compression = true};

/// The fastest of the ways in which gradients travel, with each codec.
std::optional<CodedWay> fastest_coded(comm::StepModel& model, const train::Found& found,
                                      const train::Recipe& recipe, const train::Task& task) {
  for (const train::Outcome& way : found.fitting) {
    auto codecs = priced_ways(model, with(recipe.train, way.candidate), task, way.step, kOpenCodec);
    if (codecs.ok() && codecs->size() > 1) return CodedWay{way, std::move(*codecs)};
  }
  return std::nullopt;
}

Status write_recipe(const PlanOptions& o, train::Recipe recipe, const parallel::Candidate& best) {
  if (o.write.empty()) return {};
  recipe.train = with(std::move(recipe.train), best);
  return replace_file(o.write, [&](std::ostream& file) { file << train::to_toml(recipe); });
}

}  // namespace

Result<std::vector<std::string>> fastest_keys(const train::Recipe& recipe, const train::Task& task,
                                              const data::Dataset& data,
                                              const std::vector<int>& ranks_per_host,
                                              std::int64_t memory) {
  comm::StepModel model(recipe.train.name, plan::Topology::gigabit(ranks_per_host));
  STORMO_ASSIGN_OR_RETURN(const train::Found found, search(/*measured=*/true, recipe, task, data,
                                                           ranks_per_host, memory, model));
  return keys_of(found.fitting.front().candidate, recipe.train);
}

Status search_plans(const PlanOptions& options) {
  PlanOptions o = options;
  o.measured = o.gflops == 0;
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology topology, load_topology(o, ranks));
  const std::vector<int>& ranks_per_host = topology.host_sizes;
  std::int64_t memory = train::memory_of_a_rank(launch::available_memory(), ranks_per_host);
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
  STORMO_ASSIGN_OR_RETURN(comm::StepModel model, step_model(o, ranks));
  STORMO_ASSIGN_OR_RETURN(const train::Found found, search(o.measured, recipe, task, *data.train,
                                                           ranks_per_host, memory, model));
  std::optional<OneProcess> one_process;
  if (o.measured) {
    STORMO_ASSIGN_OR_RETURN(one_process, alone(recipe, task, *data.train));
  }
  const std::optional<CodedWay> coded = fastest_coded(model, found, recipe, task);
  if (o.json) {
    print_found_json(found, recipe, one_process, coded);
  } else {
    STORMO_RETURN_IF_ERROR(print_found(model, found, recipe, memory, one_process, coded));
  }
  return write_recipe(o, recipe, found.fitting.front().candidate);
}

}  // namespace stormo::cli
