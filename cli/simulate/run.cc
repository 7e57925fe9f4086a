// `stormo simulate`: trains the model of a recipe under each policy, in virtual time.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include <cli/commands.h>
#include <cli/plan/output.h>
#include <cli/simulate/options.h>
#include <cli/simulate/report.h>
#include <cli/train/report.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/sampler.h>
#include <stormo/launch/environment.h>
#include <stormo/server/ledger/record_times.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/failure.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/server_store/elastic_store.h>
#include <stormo/train/simulate/simulated_training.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::cli {
namespace {

using protocol::PolicyOptions;
using Errors = std::vector<std::string>;
using WallClock = std::chrono::steady_clock;

constexpr const char* kSimulate = "simulate";
constexpr std::int64_t kLossSteps = 100;  // that the train loss is the mean of, at most
constexpr Duration kShowEvery = std::chrono::milliseconds(100);

/// Where the recipe has such copies, "all" has Downpour, too.
std::vector<std::string> policies_of(const train::Recipe& recipe, const SimulateArguments& a,
                                     const std::vector<std::string>& named) {
  using Kind = train::Strategy::Kind;
  const bool copies = !recipe.train.strategy.exchange_periods.every_step();
  std::vector<std::string> policies = named;
  if (a.policies.empty()) {
    const PolicyOptions::Kind kind = recipe.train.servers.policy.kind;
    switch (recipe.train.strategy.kind) {
      case Kind::kParameterServer:
        if (copies && kind == PolicyOptions::Kind::kAsync) return {kDownpour};
        if (protocol::averages_values(kind)) return {kParameterAveraging};
        return {std::string(protocol::policy_names()[static_cast<std::size_t>(kind)])};
      case Kind::kParameterAveraging: return {kParameterAveraging};
      case Kind::kElasticAveraging: return {kElasticAveraging};
      default: policies = simulated_policies();
    }
  } else if (std::ranges::count(a.policies, "all") == 0) {
    return policies;
  }
  if (copies && std::ranges::count(policies, kDownpour) == 0) policies.emplace_back(kDownpour);
  return policies;
}

/// Puts servers in place of another strategy.
void use_servers(train::Recipe& recipe) {
  const train::Strategy was = recipe.train.strategy, without;
  train::Strategy& s = recipe.train.strategy;
  // a worker is one machine, however many ranks or parts it has
  s.worker_ranks = s.pipeline = s.tensor = 1;
  s.sequence_parallel = false;
  s.schedule = without.schedule;
  s.chunks = without.chunks;
  s.cut = without.cut;
  if (was.kind == train::Strategy::Kind::kParameterServer) return;
  s = {.kind = train::Strategy::Kind::kParameterServer,
       .exchange_periods = was.exchange_periods,
       .period = recipe.open.period ? without.period : was.period};
  recipe.train.gradients = {};
  recipe.open = {};
}

/// The options of training with this policy.
train::TrainerOptions options_with(const train::TrainerOptions& recipe, const std::string& name) {
  using Kind = train::Strategy::Kind;
  train::TrainerOptions out = recipe;
  if (name == kParameterAveraging || name == kElasticAveraging) {
    out.strategy.kind =
        name == kElasticAveraging ? Kind::kElasticAveraging : Kind::kParameterAveraging;
    return out;
  }
  const std::vector<std::string_view>& names = protocol::policy_names();
  PolicyOptions::Kind& kind = out.servers.policy.kind;
  kind = name == kDownpour
             ? PolicyOptions::Kind::kAsync
             : static_cast<PolicyOptions::Kind>(std::ranges::find(names, name) - names.begin());
  const bool copies = name == kDownpour || kind == PolicyOptions::Kind::kNSoftsync;
  if (!copies) out.strategy.exchange_periods = {};
  return out;
}

/// What is wrong with one policy for that many workers; empty: nothing.
std::string problem_of(const train::TrainerOptions& with, const std::string& name, int workers) {
  if (name == kParameterAveraging) return train::check_simulated(with).message();
  if (name == kElasticAveraging) {
    const auto rate = train::moving_rate_of(with.elastic, workers);
    return rate.ok() ? "" : rate.status().message() + "; change strategy.moving_rate";
  }
  if (name == kDownpour && with.strategy.exchange_periods.every_step()) {
    return "downpour: is async where pulls or pushes are not in every step; add "
           "strategy.fetch_every=4 strategy.push_every=4";
  }
  if (protocol::has_coordinator(with.servers.policy.kind)) {
    return name + ": has a coordinator, which is not simulated; choose other --policies";
  }
  const auto made = make_policy(with.servers.policy, workers);
  if (made.ok()) return "";
  return made.status().message() + "; change the recipe's key, or choose other --policies";
}

/// What is wrong with the recipe, and with the policies for that many workers; reads no data.
Errors problems_of(const train::ParsedRecipe& parsed, const SimulateOptions& options) {
  Errors errors = parsed.errors;
  if (!parsed.readable || options.cluster.workers == 0) return errors;
  train::ParsedRecipe of_one = parsed;
  leave_out_unused(of_one.recipe);  // other policies use it
  const Errors wrong = train::check_recipe(of_one, options.cluster.workers);
  errors.insert(errors.end(), wrong.begin(), wrong.end());
  if (parsed.recipe.precision == "float16") {
    errors.push_back(parsed.at("precision") +
                     "with parameter servers every worker would have a loss scale of its own; use "
                     "bfloat16 or float32");
  }
  if (!parsed.recipe.init.from.empty()) {
    errors.push_back(parsed.at("train.init_from") +
                     "a simulation begins with weights of its own; leave it out");
  }
  for (const std::string& name : options.policies) {
    const std::string problem =
        problem_of(options_with(parsed.recipe.train, name), name, options.cluster.workers);
    if (!problem.empty()) errors.push_back(problem);
  }
  return errors;
}

/// Shows on a terminal how far a policy is.
class PolicyProgress {
 public:
  PolicyProgress(std::string policy, std::int64_t gradients)
      : policy_(std::move(policy)), gradients_(gradients), shows_(terminal_columns() > 0) {}
  ~PolicyProgress() {
    if (shown_) std::fputs("\r\x1b[2K", stderr);
  }
  PolicyProgress(const PolicyProgress&) = delete;
  PolicyProgress& operator=(const PolicyProgress&) = delete;

  void step(const train::SimulatedTraining::Step& step) {
    ++done_;
    if (!shows_ || WallClock::now() - last_ < kShowEvery) return;
    last_ = WallClock::now();
    shown_ = true;
    std::fputs(fmt::format("\r\x1b[2K{}: gradient {} of {}, loss {:.4f}", policy_, done_,
                           gradients_, step.loss)
                   .c_str(),
               stderr);
  }

 private:
  std::string policy_;
  std::int64_t gradients_;
  bool shows_;
  bool shown_ = false;
  std::int64_t done_ = 0;
  WallClock::time_point last_ = WallClock::now();
};

Result<std::optional<observe::EvalRecord>> score(const train::Task& task,
                                                 const std::vector<train::EvalSplit>& splits) {
  if (splits.empty()) return std::optional<observe::EvalRecord>();
  auto split = std::ranges::find(splits, "test", &train::EvalSplit::name);
  if (split == splits.end()) split = splits.begin();
  STORMO_ASSIGN_OR_RETURN(const auto alone, comm::make_inproc_group(1));
  STORMO_ASSIGN_OR_RETURN(const train::Evaluation result,
                          train::evaluate(*alone.front(), task, *split));
  return std::optional(
      observe::EvalRecord{.split = split->name, .loss = result.loss, .accuracy = result.accuracy});
}

/// Everything of `p` that the servers and workers tell.
void count(const protocol::VirtualOutcome& outcome, SimulatedPolicy& p) {
  p.time = outcome.time;
  p.lost = outcome.lost;
  p.steps = outcome.steps;
  for (const protocol::ShardState& server : outcome.servers) {
    std::uint64_t dropped = 0;
    for (const protocol::WorkerState& w : server.workers) dropped += w.dropped;
    p.updates = std::max(p.updates, server.version);
    p.dropped = std::max(p.dropped, dropped);
    p.staleness.add(server.staleness());
  }
  Duration waited{};
  for (const Duration d : outcome.waited) waited += d;
  const double whole =
      static_cast<double>(p.time.count()) * static_cast<double>(outcome.waited.size());
  if (whole > 0) p.waited = static_cast<double>(waited.count()) / whole;
}

/// `window`: gradients that the train loss is the mean of.
Result<SimulatedPolicy> run_policy(const std::string& policy, const train::Recipe& recipe,
                                   const train::RecipeData& data,
                                   const protocol::VirtualCluster& cluster, std::size_t window) {
  const auto start = WallClock::now();
  SimulatedPolicy p{.policy = policy};
  STORMO_ASSIGN_OR_RETURN(const train::Task task, train::make_task(recipe, data.preprocessing));
  PolicyProgress progress(p.policy, cluster.steps * cluster.workers);
  STORMO_ASSIGN_OR_RETURN(
      const train::SimulatedTraining trained,
      train::simulate_training(task, *data.train, options_with(recipe.train, policy), cluster,
                               [&](const auto& step) { progress.step(step); }));
  count(trained.outcome, p);
  p.diverged = trained.diverged.has_value();
  for (const train::SimulatedTraining::Step& s : trained.steps) {
    if (!std::isfinite(s.loss)) continue;
    p.losses.push_back({.at = s.at, .loss = s.loss, .samples = static_cast<double>(s.samples)});
  }
  p.means = running_means(p.losses, window);
  if (!p.diverged) {
    p.weights_hash = train::weights_hash(train::named_state(*task.module));
    STORMO_ASSIGN_OR_RETURN(p.score, score(task, data.splits));
  }
  p.wall_s = std::chrono::duration<double>(WallClock::now() - start).count();
  return p;
}

Result<server::RecordedTimes> times_in(const std::string& directory) {
  STORMO_ASSIGN_OR_RETURN(const train::RunRecord record, train::read_run_record(directory));
  STORMO_ASSIGN_OR_RETURN(const auto events, train::read_events(directory, record));
  return server::recorded_times(events);
}

Status simulate(const SimulateArguments& a, const train::Recipe& recipe,
                const SimulateOptions& options) {
  STORMO_ASSIGN_OR_RETURN(const int given, launch::threads_per_rank(launch::process_environment()));
  const std::int64_t threads = recipe.threads > 0 ? recipe.threads : given;
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  STORMO_ASSIGN_OR_RETURN(train::RecipeData data, train::load_data(recipe));
  warn(data.warnings);
  const train::TrainerOptions& o = recipe.train;
  const data::Sampler sampler(data.train->size(), o.global_batch, o.seed, /*shuffle=*/true, 0, 1);
  Simulation simulation{.name = o.name, .global_batch = o.global_batch, .cluster = options.cluster};
  std::int64_t& steps = simulation.cluster.steps;
  steps = o.steps > 0 ? o.steps : sampler.steps_until(0, o.epochs);
  const std::int64_t last = std::min({kLossSteps, sampler.steps_per_epoch(), (steps + 9) / 10});
  const auto window =
      static_cast<std::size_t>(std::max<std::int64_t>(last, 1) * simulation.cluster.workers);
  for (const std::string& policy : options.policies) {
    STORMO_ASSIGN_OR_RETURN(SimulatedPolicy p,
                            run_policy(policy, recipe, data, simulation.cluster, window));
    simulation.policies.push_back(std::move(p));
    if (!a.json) continue;
    print_line(policy_json(simulation, simulation.policies.back()));
    std::fflush(stdout);
  }
  if (a.svg) fmt::print("{}", svg_losses(simulation));
  if (!a.svg && !a.json) print_simulation(simulation);
  return {};
}

}  // namespace

int run_simulate(const SimulateArguments& words) {
  SimulateArguments a = words;
  Errors wrong;
  server::RecordedTimes times;
  if (!a.times.empty()) {
    Result<server::RecordedTimes> recorded = times_in(a.times);
    if (!recorded.ok())
      return say_failed(kSimulate, kExitUsage, {"--times: " + recorded.status().message()}, a.json);
    times = std::move(*recorded);
    a.workers = static_cast<int>(times.steps.size());
    a.time.latency = "0s";  // the times have it
  }
  SimulateOptions options = to_simulate_options(a, wrong);
  options.cluster.times = std::move(times.steps);
  options.cluster.leaves = std::move(times.leaves);
  train::ParsedRecipe parsed = train::load_recipe(a.recipe, a.overrides);
  options.policies = policies_of(parsed.recipe, a, options.policies);
  use_servers(parsed.recipe);
  warn(parsed.left_out);
  const Errors problems = problems_of(parsed, options);
  wrong.insert(wrong.end(), problems.begin(), problems.end());
  if (!wrong.empty()) return say_failed(kSimulate, kExitUsage, wrong, a.json);
  Status done;
  try {
    done = simulate(a, parsed.recipe, options);
  } catch (...) {
    done = train::failure_of_current_exception();
  }
  return done.ok() ? kExitOk : say_failed(kSimulate, done, a.json);
}

}  // namespace stormo::cli
