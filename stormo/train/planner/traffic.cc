// What travels between ranks, and how often: the way that loses least and still hides.
#include <stormo/train/planner/traffic.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/base/units.h>
#include <stormo/codec/loss_order.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/tune/links.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/planner/measure_on_ranks.h>
#include <stormo/train/planner/planned_step.h>

namespace stormo::train {
namespace {

/// All values of an open key; the first one loses least.
std::vector<TrafficWay> values_of(const TrainerOptions& options, const OpenKeys& open) {
  const TrafficWay given{.codec = options.gradients.codec, .period = options.strategy.period};
  std::vector<TrafficWay> out;
  if (open.compression) {
    for (const CodecLoss& loss : least_lossy_first()) {
      out.push_back(given);
      out.back().codec.kind = loss.codec;
      out.back().is_automatic = loss.is_automatic;
    }
    return out;
  }
  for (int period = 1; period <= kLongestPeriod; period *= 2) {
    out.push_back(given);
    out.back().period = period;
  }
  return out;
}

bool uses_codec(const TrafficWay& way) {
  return way.codec.kind == Codec::kNone ||
         std::ranges::count(way.step.plan.actions, way.codec, &plan::Action::codec) > 0;
}

/// Whatever the plan is called.
std::uint64_t hash_of_actions(plan::StepPlan plan) {
  plan.strategy.clear();
  return hash(plan);
}

std::string time_text(double seconds) {
  return format_duration(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

std::string text_of(const plan::Topology& links) {
  const plan::Link& link = links.hosts() > 1 ? links.inter : links.intra;
  return fmt::format(
      "{}/s and {} {}", format_bytes(static_cast<std::uint64_t>(1 / link.seconds_per_byte)),
      time_text(link.latency_s), links.hosts() > 1 ? "between hosts" : "in the host");
}

/// What all ways have alike: what ranks compute.
Status add_measured(comm::Communicator& world, const Task& task, const data::Dataset& data,
                    const TrainerOptions& options, const RankMemory& memory,
                    std::vector<TrafficWay>& ways) {
  const comm::StepInput& step = ways.front().step;
  const Wanted wanted{with(options, ways.front()), std::min(step.samples, data.size()),
                      has_backward_parts(step.plan)};
  make_values(task);
  const KeptValues kept(*task.module);
  STORMO_ASSIGN_OR_RETURN(const std::vector<StepMeasurement> measured,
                          measure_on_ranks(world, task, data, {wanted}, memory.usable));
  for (TrafficWay& way : ways) take_measured(way.step, measured.front());
  return {};
}

}  // namespace

Result<std::vector<TrafficWay>> traffic_ways(const TrainerOptions& options, const Task& task,
                                             const std::vector<int>& ranks_per_host,
                                             const OpenKeys& open, std::int64_t samples,
                                             bool can_share) {
  STORMO_CHECK(open.compression != open.period, "traffic_ways: one key is open");
  std::vector<TrafficWay> out;
  std::set<std::uint64_t> known;
  Status refused;
  bool is_refused = true;  // whatever changes something
  for (TrafficWay& way : values_of(options, open)) {
    Result<comm::StepInput> step =
        planned_step(with(options, way), task, ranks_per_host, samples, can_share);
    const bool changes = open.period || way.codec.kind != Codec::kNone;
    if (!step.ok()) {
      if (!changes) return step.status();
      if (refused.ok()) refused = step.status();
      continue;
    }
    is_refused = is_refused && !changes;
    way.step = std::move(*step);
    const bool is_new = known.insert(hash_of_actions(way.step.plan)).second;
    if (is_new && uses_codec(way)) out.push_back(std::move(way));
  }
  if (is_refused) return refused;
  return out;
}

Status price_ways(std::vector<TrafficWay>& ways, comm::StepModel& model,
                  const TrainerOptions& options,
                  const std::function<Result<CodecSpeed>(Codec)>& speed_of) {
  std::map<std::string, CodecSpeed> speeds;
  for (TrafficWay& way : ways) {
    const auto [known, is_new] = speeds.try_emplace(to_string(way.codec));
    if (is_new) {
      STORMO_ASSIGN_OR_RETURN(known->second, speed_of(way.codec));
    }
    way.step.codec = known->second;
    STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation simulated,
                            simulated_as_trained(model, with(options, way), way.step));
    STORMO_ASSIGN_OR_RETURN(way.price, price_of(model, way.step, simulated.seconds));
  }
  return {};
}

std::size_t taken_way(const std::vector<TrafficWay>& ways) {
  std::vector<comm::StepPrice> prices;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (!ways[i].is_automatic) continue;
    prices.push_back(ways[i].price);
    places.push_back(i);
  }
  return places[comm::least_lossy(prices)];
}

TrainerOptions with(TrainerOptions options, const TrafficWay& way) {
  options.gradients.codec = way.codec;
  options.strategy.period = way.period;
  return options;
}

Result<TrafficChoice> choose_traffic(comm::Communicator& world, const Task& task,
                                     const data::Dataset& data, const TrainerOptions& options,
                                     const OpenKeys& open) {
  STORMO_ASSIGN_OR_RETURN(const RankMemory memory, memory_of_ranks(world));
  TrafficChoice out;
  STORMO_ASSIGN_OR_RETURN(out.ways, traffic_ways(options, task, world.ranks_per_host(), open,
                                                 /*samples=*/0, memory.can_share));
  if (out.ways.size() == 1) return out;
  auto* const group = dynamic_cast<comm::Group*>(&world);
  if (group == nullptr) {
    return invalid_argument(
        "its links are measured with Stormo's own engine; write a value, or use --engine stormo");
  }
  STORMO_ASSIGN_OR_RETURN(out.links, comm::measure_links(*group));
  STORMO_RETURN_IF_ERROR(add_measured(world, task, data, options, memory, out.ways));
  comm::StepModel model(options.name, *out.links, group->selection());
  STORMO_RETURN_IF_ERROR(price_ways(out.ways, model, options,
                                    [&](Codec codec) { return speed_on_ranks(world, codec); }));
  out.taken = taken_way(out.ways);
  return out;
}

std::string why(const TrafficChoice& choice, const OpenKeys& open) {
  const TrafficWay& way = choice.way();
  const std::string value = open.compression ? to_string(way.codec) : fmt::to_string(way.period);
  if (!choice.links) {
    return value + ": another value would change nothing that travels between ranks";
  }
  const bool hides = comm::hides(way.price);
  return fmt::format(
      "{}, {}: a step is said to take {}, and {} without communication; links of {}", value,
      hides ? "which loses least of what hides communication" : "the fastest, as none hides it",
      time_text(way.price.seconds), time_text(way.price.alone), text_of(*choice.links));
}

}  // namespace stormo::train
