#include <cli/bench/async/options.h>

#include <fmt/format.h>

#include <algorithm>

#include <cli/bench/step/opponents.h>
#include <cli/flag_values.h>
#include <stormo/base/text.h>
#include <stormo/protocol/server/policy.h>

namespace stormo::cli {
namespace {

constexpr std::string_view kTurns = "turns";

SlowWorker read_slow(const std::string& text, Wrong& wrong) {
  SlowWorker slow;
  if (text.empty()) return slow;
  const auto [who, times] = halves(text);
  slow.in_turns = who == kTurns;
  slow.worker = slow.in_turns ? 0 : number_in<int>(who).value_or(-1);
  slow.factor = factor_of(times).value_or(0);
  if (slow.worker < 0 || !slow.any())
    wrong.push_back(
        fmt::format("--slow: '{}' is not WORKER:FACTORx, such as 1:3x: steps of worker 1 take 3 "
                    "times as long; turns:3x: one worker's in each step",
                    text));
  return slow;
}

void read_strategies(const AsyncArguments& a, BenchAsyncOptions& options, Wrong& wrong) {
  for (const std::string& name : a.strategies) {
    const StepStrategy* strategy = find_row(async_strategies(), name, "--strategy", wrong);
    if (strategy != nullptr && std::ranges::count(options.strategies, strategy) == 0)
      options.strategies.push_back(strategy);
  }
}

void read_opponents(const AsyncArguments& a, BenchAsyncOptions& options, Wrong& wrong) {
  options.against = known_names(names_of(async_opponents()), a.against, "--against", wrong);
  const bool others =
      options.slow.any() && !options.slow.in_turns && a.launch.ranks.value_or(1) > 1;
  if (std::ranges::count(options.against, kFastWorkers) > 0 && !others)
    wrong.push_back(
        "--against fast_workers: needs one that is slow and others, such as -n 3 --slow 2:10x");
}

}  // namespace

std::span<const StepStrategy> async_strategies() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    const std::vector<std::string_view>& policies = protocol::policy_names();
    for (std::size_t i = 0; i < policies.size(); ++i) {
      const auto kind = static_cast<protocol::PolicyOptions::Kind>(i);
      if (protocol::has_coordinator(kind) || protocol::averages_values(kind)) continue;
      all.push_back(fmt::format("parameter_server:{}", policies[i]));
    }
    return all;
  }();
  static const std::vector<StepStrategy> strategies = [] {
    const std::string server = "strategy.kind=parameter_server", async = "strategy.policy=async";
    std::vector<StepStrategy> all;
    for (const std::string& name : names)
      all.push_back({name, {server, "strategy.policy=" + name.substr(name.find(':') + 1)}});
    all.push_back({"parameter_server:in_place", {server, async, "strategy.updates=in_place"}});
    all.push_back({"downpour", {server, async, "strategy.fetch_every=4", "strategy.push_every=4"}});
    const std::string period = fmt::format("strategy.period={}", kMeetingPeriod);
    for (const std::string_view name : {"parameter_averaging", "elastic_averaging"})
      all.push_back({name, {fmt::format("strategy.kind={}", name), period}});
    all.push_back(
        {"diloco", {"strategy.kind=parameter_averaging", period, "strategy.outer=nesterov"}});
    all.insert(all.end(), step_strategies().begin(), step_strategies().end());
    return all;
  }();
  return strategies;
}

const StepStrategy& async_strategy(std::string_view name) {
  return *std::ranges::find(async_strategies(), name, &StepStrategy::name);
}

double slowness(const SlowWorker& slow, int worker, int workers, int step) {
  const bool now = slow.in_turns ? (worker + step) % workers == 0 : worker == slow.worker;
  return now ? slow.factor : 1;
}

Result<BenchAsyncOptions> to_async_options(const AsyncArguments& a) {
  BenchAsyncOptions options;
  Wrong wrong = a.wrong;
  read_strategies(a, options, wrong);
  const StepStrategy* first = options.strategies.empty() ? nullptr : options.strategies.front();
  options.jobs = read_jobs(a, first, wrong);
  for (StepJob& job : options.jobs) job.plain_sgd = true;
  if (a.svg && a.models.size() > 1)
    wrong.push_back("--svg: one picture is for one model; give one --model");
  options.slow = read_slow(a.slow, wrong);
  read_opponents(a, options, wrong);
  if (a.rounds > 0) options.rounds = a.rounds;
  static_cast<void>(to_launch_options(a.launch, wrong));
  if (!a.launch.hosts.empty())
    wrong.push_back("--hosts: server shards are in memory that workers of one host share; use -n");
  const int workers = a.launch.ranks.value_or(1);
  if (!options.slow.in_turns && options.slow.any() && options.slow.worker >= workers)
    wrong.push_back(fmt::format("--slow: there is no worker {} of {}, they count from 0",
                                options.slow.worker, workers));
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  return options;
}

}  // namespace stormo::cli
