#include <cli/simulate/options.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>

#include <cli/flag_values.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/shard/shard_memory.h>

namespace stormo::cli {
namespace {

using protocol::VirtualCluster;

constexpr double kMostLoss = 0.9;  // beyond, a run only waits

Duration duration_of(const char* flag, std::string_view text, Wrong& wrong) {
  return read_duration(flag, text, wrong).value_or(Duration(1));
}

/// By worker.
std::vector<double> slowness_of(const std::vector<std::string>& stragglers, int workers,
                                Wrong& wrong) {
  std::vector<double> slow;  // from the last worker
  for (const std::string& text : stragglers) {
    const auto [first, second] = halves(text);
    const auto count = number_in<int>(first);
    const auto factor = factor_of(second);
    if (!count || !factor || *count < 1 || !(*factor > 0) || *factor > 1e6) {
      wrong.push_back(fmt::format(
          "--stragglers: '{}' is not COUNT:FACTORx, such as 2:10x: 2 workers take 10 times as long",
          text));
    } else {
      const auto many = std::min<std::size_t>(static_cast<std::size_t>(*count), 1'000'000);
      slow.insert(slow.end(), many, *factor);
    }
  }
  std::vector<double> slowness(static_cast<std::size_t>(workers), 1);
  if (std::ssize(slow) > workers) {
    wrong.push_back(
        fmt::format("--stragglers: {} stragglers among {} workers", slow.size(), workers));
  } else {
    std::ranges::copy(slow, slowness.rbegin());
  }
  return slowness;
}

struct Crash {
  int who = 0;
  Duration at{};
};

/// "3:250ms" of a flag whose words are `what`: WORKER or SERVER.
std::optional<Crash> crash_of(const char* flag, const char* what, std::string_view text,
                              Wrong& wrong) {
  const auto [first, second] = halves(text);
  const auto number = number_in<int>(first);
  const Result<Duration> at = parse_duration(second);
  if (number && at.ok()) return Crash{.who = *number, .at = *at};
  wrong.push_back(fmt::format(
      "{}: '{}' is not {}:TIME, such as 3:250ms: number 3 ends after 250 ms", flag, text, what));
  return std::nullopt;
}

void read_crashes(const SimulateArguments& a, VirtualCluster& cluster, Wrong& wrong) {
  std::set<int> crashed;
  for (const std::string& text : a.crashes) {
    const std::optional<Crash> crash = crash_of("--crash", "WORKER", text, wrong);
    if (!crash) continue;
    if (crash->who < 0 || crash->who >= a.workers) {
      wrong.push_back(fmt::format("--crash: there is no worker {}; they are 0 to {}", crash->who,
                                  a.workers - 1));
    } else {
      cluster.crashes.push_back({.worker = crash->who, .at = crash->at});
      crashed.insert(crash->who);
    }
  }
  if (std::ssize(crashed) == a.workers) wrong.push_back("--crash: no worker is left");
}

// How many servers there are, the model says.
void read_losses(const SimulateArguments& a, VirtualCluster& cluster, Wrong& wrong) {
  cluster.loss = a.loss;
  cluster.backups = a.server_backups;
  if (!(a.loss >= 0 && a.loss <= kMostLoss)) {
    wrong.push_back(fmt::format("--loss: {} is not from 0 to {}", a.loss, kMostLoss));
  }
  cluster.timeout = duration_of("--timeout", a.timeout, wrong);
  if (cluster.timeout <= Duration::zero()) {
    wrong.push_back("--timeout: an answer needs some time, such as 100ms");
  }
  for (const std::string& text : a.server_crashes) {
    const std::optional<Crash> crash = crash_of("--server-crash", "SERVER", text, wrong);
    if (crash) cluster.server_crashes.push_back({.server = crash->who, .at = crash->at});
  }
}

std::vector<std::string> read_policies(const SimulateArguments& a, Wrong& wrong) {
  const std::vector<std::string> all = simulated_policies();
  std::vector<std::string> names = all;
  names.emplace_back(kDownpour);
  std::vector<std::string> policies;
  for (const std::string& text : a.policies) {
    if (text != "all" && std::ranges::find(names, text) == names.end()) {
      wrong.push_back(fmt::format("--policies: '{}' is no policy; write {} or all", text,
                                  fmt::join(names, ", ")));
      continue;
    }
    for (const std::string& name : text == "all" ? all : std::vector{text}) {
      if (std::ranges::find(policies, name) == policies.end()) policies.push_back(name);
    }
  }
  return policies;
}

}  // namespace

std::array<CLI::Option*, 3> add_virtual_time(CLI::App& command, VirtualTimeFlags& flags,
                                             const char* compute, const char* latency) {
  return {command.add_option("--compute", flags.compute, compute)->capture_default_str(),
          command
              .add_option("--jitter", flags.jitter,
                          "Of this time: 0.1 means from 10 % less to 10 % more")
              ->capture_default_str(),
          command.add_option("--latency", flags.latency, latency)->capture_default_str()};
}

CLI::Option* add_stragglers(CLI::App& command, VirtualTimeFlags& flags) {
  return command
      .add_option("--stragglers", flags.stragglers,
                  "COUNT:FACTORx: the last workers take longer, 2:10x: two of them\n10 times as "
                  "long; may be repeated")
      ->allow_extra_args(false);
}

protocol::VirtualWorkers read_virtual_time(const VirtualTimeFlags& flags, int workers,
                                           Wrong& wrong) {
  if (!(flags.jitter >= 0 && flags.jitter < 1)) {
    wrong.push_back(fmt::format("--jitter: {} is not from 0 to less than 1", flags.jitter));
  }
  const auto time = [&wrong](const char* flag, const std::string& text) {
    const Duration out = duration_of(flag, text, wrong);
    if (out > protocol::kMostVirtualTime) {
      wrong.push_back(fmt::format("{}: {} is over 30 years", flag, text));
    }
    return out;
  };
  protocol::VirtualWorkers out{.compute = time("--compute", flags.compute),
                               .jitter = flags.jitter,
                               .latency = time("--latency", flags.latency)};
  if (workers > 0) out.slowness = slowness_of(flags.stragglers, workers, wrong);
  return out;
}

SimulateOptions to_simulate_options(const SimulateArguments& a, Wrong& wrong) {
  constexpr int kMost = server::ShardMemory::kMaxWorkers;
  const bool possible = a.workers >= 1 && a.workers <= kMost;
  SimulateOptions options;
  VirtualCluster& cluster = options.cluster;
  cluster.workers = possible ? a.workers : 0;
  cluster.pooled = a.pooled;
  cluster.seed = a.seed;
  protocol::VirtualWorkers time = read_virtual_time(a.time, cluster.workers, wrong);
  cluster.compute = time.compute;
  cluster.jitter = time.jitter;
  cluster.latency = time.latency;
  cluster.slowness = std::move(time.slowness);
  if (cluster.compute <= Duration::zero()) {
    wrong.push_back("--compute: a step needs some time, such as 10ms");
  }
  read_losses(a, cluster, wrong);
  if (possible) {
    read_crashes(a, cluster, wrong);
  } else {
    wrong.push_back(fmt::format("--workers: {} is not from 1 to {}", a.workers, kMost));
  }
  options.policies = read_policies(a, wrong);
  return options;
}

std::vector<std::string> simulated_policies() {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < protocol::policy_names().size(); ++i) {
    const auto kind = static_cast<protocol::PolicyOptions::Kind>(i);
    if (protocol::has_coordinator(kind) || protocol::averages_values(kind)) continue;
    out.emplace_back(protocol::policy_names()[i]);
  }
  out.insert(out.end(), {kParameterAveraging, kElasticAveraging});
  return out;
}

}  // namespace stormo::cli
