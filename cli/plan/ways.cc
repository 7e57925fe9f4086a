// What a step takes with each codec, or each period.
#include <cli/plan/ways.h>

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <cli/plan/recipe.h>
#include <cli/plan/step.h>
#include <stormo/codec/speed.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/step/strategy.h>

namespace stormo::cli {
namespace {

using train::OpenKeys;
using train::TrafficWay;

/// Flags that are of one plan.
Status check_flags_of_ways(const PlanOptions& o) {
  if (o.trace.empty() && o.lost.empty() && !o.svg) return {};
  return invalid_argument(
      "--trace, --lost and --svg are of one plan, and the recipe leaves open what travels "
      "(\"auto\"): leave them out, or write a value");
}

}  // namespace

Result<std::vector<TrafficWay>> priced_ways(comm::StepModel& model,
                                            const train::TrainerOptions& options,
                                            const train::Task& task, const comm::StepInput& like,
                                            const OpenKeys& open) {
  STORMO_ASSIGN_OR_RETURN(
      std::vector<TrafficWay> ways,
      train::traffic_ways(options, task, like.ranks_per_host, open, like.samples));
  for (TrafficWay& way : ways) {
    way.step.measured = like.measured;
    way.step.memory = like.memory;
    way.step.sizes.outputs = like.sizes.outputs;
  }
  const auto speed_of = [&](Codec codec) -> Result<CodecSpeed> {
    return like.measured ? measure_speed(codec) : CodecSpeed{};
  };
  STORMO_RETURN_IF_ERROR(train::price_ways(ways, model, options, speed_of));
  return ways;
}

void print_ways(const std::vector<TrafficWay>& ways, const OpenKeys& open) {
  Rows rows{{open.period ? "period" : "compression", "step", "without communication", ""}};
  const std::size_t taken = train::taken_way(ways);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const TrafficWay& way = ways[i];
    const char* const note = i == taken         ? "\"auto\" takes it"
                             : way.is_automatic ? ""
                                                : "\"auto\" never takes it";
    rows.push_back({open.period ? fmt::to_string(way.period) : to_string(way.codec),
                    time_text(way.price.seconds), time_text(way.price.alone), note});
  }
  print_table(rows, false);
}

std::string ways_json(const std::vector<TrafficWay>& ways) {
  nlohmann::json out = nlohmann::json::array();
  const std::size_t taken = train::taken_way(ways);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    out.push_back({{"compression", to_string(ways[i].codec)},
                   {"period", ways[i].period},
                   {"seconds", ways[i].price.seconds},
                   {"alone_seconds", ways[i].price.alone},
                   {"taken", i == taken}});
  }
  return out.dump();
}

Result<bool> simulate_open_recipe(const PlanOptions& o) {
  const OpenKeys open = train::load_recipe(o.plan, o.overrides).recipe.open;
  if (!open.any()) return false;
  STORMO_RETURN_IF_ERROR(check_flags_of_ways(o));
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology topology, load_topology(o, ranks));
  STORMO_ASSIGN_OR_RETURN(const LoadedRecipe loaded, load_recipe(o, ranks));
  STORMO_ASSIGN_OR_RETURN(const StepInput step, step_of(o, loaded, topology.host_sizes));
  STORMO_ASSIGN_OR_RETURN(comm::StepModel model, step_model(o, ranks));
  STORMO_ASSIGN_OR_RETURN(const std::vector<TrafficWay> ways,
                          priced_ways(model, loaded.recipe.train, loaded.task, step, open));
  if (o.json) {
    print_json(nlohmann::json{{"event", "ways"},
                              {"measured", step.measured.has_value()},
                              {"ways", nlohmann::json::parse(ways_json(ways))}});
    return true;
  }
  print_line(heading(step));
  print_ways(ways, open);
  return true;
}

}  // namespace stormo::cli
