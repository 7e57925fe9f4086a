#include <stormo/comm/tune/links.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <stormo/comm/selection/collective_model.h>
#include <stormo/comm/tune/trial.h>

namespace stormo::comm {
namespace {

constexpr std::uint64_t kBriefBytes = 1 << 10;
constexpr std::uint64_t kFirstLongBytes = 64 << 10;
constexpr std::uint64_t kMostBytes = 4 << 20;
/// A transfer of this time says what a link does, also where it lets a burst pass.
constexpr double kLongEnough = 0.1;
constexpr int kBriefRuns = 9;
constexpr int kLongRuns = 3;

/// Between these the model finds a latency and the time of a byte, in seconds.
constexpr double kLeastLatency = 1e-8, kMostLatency = 10;
constexpr double kLeastPerByte = 1e-13, kMostPerByte = 1e-3;
/// Bisections of a logarithm, and how often each of the two numbers is sought with the other one.
constexpr int kBisections = 30, kTurns = 3;

analysis::Collective sum_of(std::int64_t bytes) {
  return {.goal = plan::GoalKind::kAllReduce,
          .elements = bytes / static_cast<std::int64_t>(sizeof(float)),
          .dtype = DType::kFloat32,
          .axes = {}};
}

/// Sets `value`, with which `seconds_of` grows, so that it comes to `target`; at one of the ends if
/// it is not between them.
Status solve(double& value, double low, double high, double target,
             const std::function<Result<double>()>& seconds_of) {
  for (int i = 0; i < kBisections; ++i) {
    value = std::sqrt(low * high);
    STORMO_ASSIGN_OR_RETURN(const double seconds, seconds_of());
    (seconds < target ? low : high) = value;
  }
  return {};
}

/// By the algorithm that anybody gets for so many bytes. The fastest of some runs: other processes
/// of the machine only make them longer.
Result<TimedReduction> time_of(Trial& trial, Group& world, std::uint64_t bytes, int runs) {
  const auto choice = world.selection().choose(
      plan::GoalKind::kAllReduce, host_layout_of(world.ranks_per_host()), world.size(), bytes);
  TimedReduction out{.bytes = static_cast<std::int64_t>(bytes),
                     .seconds = std::numeric_limits<double>::infinity()};
  for (int i = 0; i <= runs; ++i) {
    STORMO_ASSIGN_OR_RETURN(const double seconds,
                            trial.once(plan::GoalKind::kAllReduce, bytes, choice));
    if (i > 0) out.seconds = std::min(out.seconds, seconds);  // the first one connects
  }
  return out;
}

/// `bytes`, as a number of floats that all ranks have equal parts of: Trial moves no more.
std::uint64_t in_equal_parts(std::uint64_t bytes, int ranks) {
  const std::uint64_t unit = sizeof(float) * static_cast<std::uint64_t>(ranks);
  return std::max<std::uint64_t>(bytes / unit, 1) * unit;
}

}  // namespace

Result<plan::Topology> fitted(plan::Topology links, const Selection& selection,
                              const TimedReduction& brief, const TimedReduction& lengthy) {
  plan::Link& link = links.hosts() > 1 ? links.inter : links.intra;
  // there memory is read once, and what is added up is not another cost
  if (links.hosts() == 1) links.reduce_seconds_per_byte = 0;
  const auto model_of = [&](const TimedReduction& of) -> Result<double> {
    CollectiveModel model(links, selection);
    STORMO_ASSIGN_OR_RETURN(const Duration time, model.time(links.host_sizes, sum_of(of.bytes)));
    return std::chrono::duration<double>(time).count();
  };
  const double assumed = link.latency_s;
  const auto solve_per_byte = [&] {
    return solve(link.seconds_per_byte, kLeastPerByte, kMostPerByte, lengthy.seconds,
                 [&] { return model_of(lengthy); });
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    STORMO_RETURN_IF_ERROR(solve_per_byte());
    STORMO_RETURN_IF_ERROR(solve(link.latency_s, kLeastLatency, kMostLatency, brief.seconds,
                                 [&] { return model_of(brief); }));
  }
  if (link.seconds_per_byte < 2 * kLeastPerByte) {  // what held the short one up was no link
    link.latency_s = assumed;
    STORMO_RETURN_IF_ERROR(solve_per_byte());
  }
  return links;
}

Result<plan::Topology> measure_links(Group& world) {
  const plan::Topology assumed = plan::Topology::gigabit(world.ranks_per_host());
  if (world.size() == 1) return assumed;
  const auto bytes_of = [&](std::uint64_t bytes) { return in_equal_parts(bytes, world.size()); };
  STORMO_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trial> trial,
      Trial::create(world, std::max(bytes_of(kMostBytes), bytes_of(kBriefBytes)), Duration{0}));
  STORMO_ASSIGN_OR_RETURN(const TimedReduction brief,
                          time_of(*trial, world, bytes_of(kBriefBytes), kBriefRuns));
  TimedReduction lengthy;
  for (std::uint64_t bytes = kFirstLongBytes; bytes <= kMostBytes; bytes *= 4) {
    STORMO_ASSIGN_OR_RETURN(lengthy, time_of(*trial, world, bytes_of(bytes), kLongRuns));
    if (lengthy.seconds >= kLongEnough) break;
  }
  return fitted(assumed, world.selection(), brief, lengthy);
}

}  // namespace stormo::comm
