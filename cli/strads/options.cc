#include <cli/strads/options.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <cli/number_check.h>
#include <stormo/base/text.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/npy_values.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::cli {

Need from(std::int64_t least, std::int64_t most) {
  return {[least, most](double v) {
            return v >= static_cast<double>(least) && v <= static_cast<double>(most);
          },
          fmt::format("is not from {} to {}", least, most)};
}

Need above_zero() {
  return {[](double v) { return v > 0 && std::isfinite(v); }, "is not a number greater than 0"};
}

void add_common(CLI::App& command, StradsArguments& a, const char* seeded) {
  a.add(command, "--seed", a.schedule.seed, seeded)->check(at_least(0));
  command.add_flag("--json", a.json, "One JSON object per judgement on stdout, and one at the end");
  command.add_flag("--dry-run", a.dry_run, "Print the plan of a round, start nothing");
  auto* simulated = a.add(command, "--virtual", a.virtual_workers,
                          "Number of workers in virtual time, in one process", from(1, 1024));
  for (CLI::Option* option :
       add_virtual_time(command, a.time, "Virtual time of a worker for its part of a block",
                        "Virtual time of a message, each way")) {
    option->needs(simulated);
  }
  add_stragglers(command, a.time)->needs(simulated);
  add_launch_flags(command, a.launch);
}

void add_schedule(CLI::App& command, StradsArguments& a, const char* block, const char* in_turn,
                  const char* every) {
  const auto of_block = [block](const char* text) {
    return fmt::format(fmt::runtime(text), block);
  };
  auto* cyclic = a.add(command, "--cyclic", a.cyclic, fmt::format("No draws: {}", in_turn));
  a.add(command, "--round", a.schedule.round, of_block("Most {}s in a round"),
        from(1, kMostNumber));
  auto* threshold =
      a.add(command, "--threshold", a.threshold,
            of_block("Two {}s whose cosine is at or above this are not updated\nat the same time"),
            {[](double v) { return v > 0 && v <= 1; }, "is not above 0 and at most 1"});
  a.add(command, "--depth", a.schedule.depth, "Rounds that may be in flight besides the oldest one",
        from(0, 1024));
  auto* base_weight = a.add(command, "--base-weight", a.schedule.base_weight,
                            of_block("A {} is drawn by its last change plus this"), above_zero());
  a.add(command, "--no-priority", a.no_priority, of_block("Draw all {}s with equal weights"))
      ->excludes(cyclic)
      ->excludes(base_weight->excludes(cyclic));
  a.add(command, "--no-check", a.no_check, "Do not look for conflicts")
      ->excludes(cyclic)
      ->excludes(threshold->excludes(cyclic));
  a.add(command, "--every", a.every, fmt::format("Rounds between judgements; default: {}", every),
        from(1, std::numeric_limits<std::int64_t>::max()));
}

int workers_of(const StradsArguments& a, Wrong& wrong) {
  const launch::HostShare last = place_of_ranks(a.launch, wrong).back();
  return std::max(1, a.virtual_workers.value_or(last.first_rank + last.ranks));
}

void check_common(const StradsArguments& a, int workers, std::int64_t rows, Wrong& wrong) {
  const auto need = [&wrong](bool holds, const std::string& text) {
    if (!holds) wrong.push_back(text);
  };
  for (const auto& [flag, text, number] : a.rows) {
    const auto value = number.holds ? number_in<double>(text()) : std::nullopt;
    need(!value || number.holds(*value), fmt::format("{}: {} {}", flag, text(), number.otherwise));
  }
  const double base = a.schedule.base_weight;
  need(!(base > protocol::kMostBlockWeight),
       fmt::format("--base-weight: {} is above {}", base, protocol::kMostBlockWeight));
  need(!a.cyclic || a.schedule.depth == 0, "--depth: a cycle has one round in flight; give 0");
  if (const auto simulated = virtual_workers_of(a, wrong)) {
    for (const auto& [flag, text, duration] :
         {std::tuple{"--compute", a.time.compute, simulated->compute},
          {"--latency", a.time.latency, simulated->latency}}) {
      need(duration <= protocol::kMostVirtualTime,
           fmt::format("{}: {} is over 30 years", flag, text));
    }
    need(!a.launch.wants_launch(), "--virtual: workers are simulated in one process; no -n or -H");
  }
  const Status rows_left = strads::rows_of(0, workers, rows).status();
  need(rows == 0 || rows_left.ok(), rows_left.message());
  (void)to_launch_options(a.launch, wrong);
}

std::optional<std::vector<std::int64_t>> shape_of(const char* flag, const std::string& path,
                                                  std::size_t dimensions, Wrong& wrong) {
  const auto shape = strads::read_npy_shape(path);
  if (shape.ok() && shape->size() == dimensions) return *shape;
  wrong.push_back(shape.ok() ? fmt::format("{}: '{}' has {} dimensions, not {}", flag, path,
                                           shape->size(), dimensions)
                             : fmt::format("{}: {}", flag, shape.status().message()));
  return std::nullopt;
}

void check_memory(const std::string& what, double bytes, Wrong& wrong) {
  const auto available = static_cast<double>(launch::available_memory());
  if (bytes <= available) return;
  wrong.push_back(
      fmt::format("{} need {:.3g} GB on this host, but {:.3g} GB of memory are available", what,
                  bytes / 1e9, available / 1e9));
}

protocol::ScheduleOptions schedule_options(const StradsArguments& a, std::int64_t blocks,
                                           std::int64_t in_turn) {
  protocol::ScheduleOptions options = a.schedule;
  options.blocks = blocks;
  options.priority = !a.no_priority;
  for (std::int64_t b = 0; a.cyclic && b < blocks; ++b) {
    if (b % in_turn == 0) options.rotation.emplace_back();
    options.rotation.back().push_back(b);
  }
  return options;
}

std::optional<protocol::VirtualWorkers> virtual_workers_of(const StradsArguments& a, Wrong& wrong) {
  if (!a.virtual_workers) return std::nullopt;
  protocol::VirtualWorkers out = read_virtual_time(a.time, *a.virtual_workers, wrong);
  out.seed = a.schedule.seed;
  return out;
}

}  // namespace stormo::cli
