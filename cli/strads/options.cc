#include <cli/strads/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <cli/number_check.h>
#include <cli/simulate/options.h>
#include <stormo/base/units.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/npy_values.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::cli {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

}  // namespace

Need from(std::int64_t least, std::int64_t most) {
  return {[least, most](double v) {
            return v >= static_cast<double>(least) && v <= static_cast<double>(most);
          },
          fmt::format("is not from {} to {}", least, most)};
}

Need above_zero() {
  return {[](double v) { return v > 0 && std::isfinite(v); }, "is not a number greater than 0"};
}

CLI::Option* CountingOptions::add_flag(CLI::App& command, const char* flag, bool& value,
                                       const std::string& help) {
  all_.push_back(
      {flag, [] { return std::nullopt; }, [&value] { return fmt::format("{}", value); }, {}});
  return command.add_flag(flag, value, help);
}

void CountingOptions::check(std::vector<std::string>& wrong) const {
  for (const Row& row : all_) {
    const std::optional<double> number = row.number();
    if (!number || !row.need.holds || row.need.holds(*number)) continue;
    wrong.push_back(fmt::format("{}: {} {}", row.flag, row.text(), row.need.otherwise));
  }
}

std::vector<comm::Fact> CountingOptions::facts() const {
  std::vector<comm::Fact> facts;
  for (const Row& row : all_) facts.push_back({row.flag, row.text()});
  return facts;
}

std::string CountingOptions::text_of(double value) { return fmt::format("{}", value); }

void add_common(CLI::App& command, StradsArguments& a, const char* seeded) {
  a.counting.add(command, "--seed", a.seed, seeded)->check(at_least(0));
  command.add_flag("--json", a.json, "One JSON object per judgement on stdout, and one at the end");
  command.add_flag("--dry-run", a.dry_run, "Print the plan of a round, start nothing");
  auto* simulated = command.add_option("--virtual", a.virtual_workers,
                                       "Number of workers in virtual time, in one process");
  command.add_option("--compute", a.compute, "Virtual time of a worker for its part of a block")
      ->needs(simulated)
      ->capture_default_str();
  command.add_option("--jitter", a.jitter, "Of this time: 0.1 means from 10 % less to 10 % more")
      ->needs(simulated)
      ->capture_default_str();
  command.add_option("--latency", a.latency, "Virtual time of a message, each way")
      ->needs(simulated)
      ->capture_default_str();
  command
      .add_option("--stragglers", a.stragglers,
                  "COUNT:FACTORx: the last workers take longer, 2:10x: two of them\n10 times as "
                  "long; may be repeated")
      ->needs(simulated)
      ->allow_extra_args(false);
  add_launch_flags(command, a.launch);
}

void add_schedule(CLI::App& command, StradsArguments& common, ScheduleArguments& a,
                  const ScheduleWords& words) {
  const auto of_block = [&words](const char* text) {
    return fmt::format(fmt::runtime(text), words.block);
  };
  CountingOptions& o = common.counting;
  auto* cyclic =
      o.add_flag(command, "--cyclic", a.cyclic, fmt::format("No draws: {}", words.in_turn));
  auto* round =
      o.add(command, "--round", a.round, of_block("Most {}s in a round"), from(1, kMostNumber));
  if (words.one_in_turn) round->excludes(cyclic);
  auto* threshold =
      o.add(command, "--threshold", a.threshold,
            of_block("Two {}s whose cosine is at or above this are not updated\nat the same time"),
            {[](double v) { return v > 0 && v <= 1; }, "is not above 0 and at most 1"})
          ->excludes(cyclic);
  o.add(command, "--depth", a.depth, "Rounds that may be in flight besides the oldest one",
        from(0, 1024));
  auto* base_weight = o.add(command, "--base-weight", a.base_weight,
                            of_block("A {} is drawn by its last change plus this"), above_zero())
                          ->excludes(cyclic);
  o.add_flag(command, "--no-priority", a.no_priority, of_block("Draw all {}s with equal weights"))
      ->excludes(cyclic)
      ->excludes(base_weight);
  o.add_flag(command, "--no-check", a.no_check, "Do not look for conflicts")
      ->excludes(cyclic)
      ->excludes(threshold);
  o.add(command, "--every", a.every,
        fmt::format("Rounds between judgements; default: {}", words.every), from(1, kMost));
}

int workers_of(const StradsArguments& a, std::vector<std::string>& wrong) {
  const launch::HostShare last = place_of_ranks(a.launch, wrong).back();
  return std::max(1, a.virtual_workers.value_or(last.first_rank + last.ranks));
}

void check_common(const StradsArguments& a, const ScheduleArguments* schedule, std::int64_t rows,
                  std::vector<std::string>& wrong) {
  const auto need = [&wrong](bool holds, const std::string& text) {
    if (!holds) wrong.push_back(text);
  };
  a.counting.check(wrong);
  if (schedule != nullptr) {
    need(!(schedule->base_weight > protocol::kMostBlockWeight),
         fmt::format("--base-weight: {} is above {}", schedule->base_weight,
                     protocol::kMostBlockWeight));
    need(!schedule->cyclic || schedule->depth == 0,
         "--depth: a cycle has one round in flight; give 0");
  }
  const int workers = workers_of(a, wrong);
  if (a.virtual_workers) {
    const Need most = from(1, 1024);
    const bool possible = most.holds(*a.virtual_workers);
    need(possible, fmt::format("--virtual: {} {}", *a.virtual_workers, most.otherwise));
    need(!a.launch.wants_launch(), "--virtual: workers are simulated in one process; no -n or -H");
    if (possible) (void)slowness_of(a.stragglers, workers, wrong);
  }
  for (const auto& [flag, text] : {std::pair{"--compute", a.compute}, {"--latency", a.latency}}) {
    const auto duration = parse_duration(text);
    need(duration.ok(), fmt::format("{}: {}", flag, duration.status().message()));
    need(!duration.ok() || *duration <= protocol::kMostVirtualTime,
         fmt::format("{}: {} is over 30 years", flag, text));
  }
  need(a.jitter >= 0 && a.jitter < 1,
       fmt::format("--jitter: {} is not from 0 to less than 1", a.jitter));
  const Status rows_left = strads::rows_of(0, workers, rows).status();
  need(rows == 0 || rows_left.ok(), rows_left.message());
  (void)to_launch_options(a.launch, wrong);
}

std::optional<std::vector<std::int64_t>> shape_of(const char* flag, const std::string& path,
                                                  std::size_t dimensions,
                                                  std::vector<std::string>& wrong) {
  const auto shape = strads::read_npy_shape(path);
  if (shape.ok() && shape->size() == dimensions) return *shape;
  wrong.push_back(shape.ok() ? fmt::format("{}: '{}' has {} dimensions, not {}", flag, path,
                                           shape->size(), dimensions)
                             : fmt::format("{}: {}", flag, shape.status().message()));
  return std::nullopt;
}

Status check_memory(const std::string& what, double bytes) {
  const auto available = static_cast<double>(launch::available_memory());
  if (bytes <= available) return {};
  return invalid_argument(
      fmt::format("{} need {:.3g} GB on this host, but {:.3g} GB of memory are available", what,
                  bytes / 1e9, available / 1e9));
}

protocol::ScheduleOptions schedule_options(const ScheduleArguments& a, std::int64_t blocks,
                                           std::uint64_t seed, std::int64_t in_turn) {
  protocol::ScheduleOptions options{.blocks = blocks,
                                    .round = a.round,
                                    .depth = a.depth,
                                    .priority = !a.no_priority,
                                    .base_weight = a.base_weight,
                                    .seed = seed};
  for (std::int64_t b = 0; a.cyclic && b < blocks; ++b) {
    if (b % in_turn == 0) options.rotation.emplace_back();
    options.rotation.back().push_back(b);
  }
  return options;
}

std::optional<protocol::VirtualWorkers> virtual_cluster(const StradsArguments& a) {
  if (!a.virtual_workers) return std::nullopt;
  std::vector<std::string> none;
  return protocol::VirtualWorkers{.compute = parse_duration(a.compute).value(),
                                  .jitter = a.jitter,
                                  .slowness = slowness_of(a.stragglers, *a.virtual_workers, none),
                                  .latency = parse_duration(a.latency).value(),
                                  .seed = a.seed};
}

}  // namespace stormo::cli
