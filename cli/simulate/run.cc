// `stormo simulate`: trains the model of a recipe under each policy, in virtual time.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include <cli/commands.h>
#include <cli/plan/output.h>
#include <cli/simulate/options.h>
#include <cli/simulate/picture.h>
#include <cli/simulate/report.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/sampler.h>
#include <stormo/launch/environment.h>
#include <stormo/server/ledger/record_times.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/failure.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/server_store/elastic_store.h>
#include <stormo/train/simulate/simulated_training.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::cli {
namespace {

using protocol::PolicyOptions;
using Errors = std::vector<std::string>;
using WallClock = std::chrono::steady_clock;

constexpr std::int64_t kLossSteps = 100;  // that the train loss is the mean of, at most
constexpr Duration kShowEvery = std::chrono::milliseconds(100);

int fail(const SimulateArguments& a, int code, const Errors& errors) {
  for (const std::string& error : errors)
    fmt::print(stderr, "stormo simulate: {}\n", printable(error));
  if (a.json) write_error_event(code, fmt::format("{}", fmt::join(errors, "\n")));
  return code;
}

bool has_servers(const train::Recipe& recipe) {
  return recipe.train.strategy.kind == train::Strategy::Kind::kParameterServer;
}

/// Where the recipe has such copies, "all" has Downpour, too.
std::vector<std::string> policies_of(const train::Recipe& recipe, const SimulateArguments& a,
                                     const std::vector<std::string>& named) {
  using Kind = train::Strategy::Kind;
  const bool copies = !recipe.train.strategy.exchange.every_step();
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
  if (has_servers(recipe)) return;
  recipe.train.strategy = {.kind = train::Strategy::Kind::kParameterServer,
                           .exchange = was.exchange,
                           .period = was.period};
  recipe.train.gradients = {};
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
  if (!copies) out.strategy.exchange = {};
  return out;
}

/// What is wrong with one policy for that many workers; empty: nothing.
std::string problem_of(const train::TrainerOptions& with, const std::string& name, int workers) {
  if (name == kParameterAveraging) return train::check_simulated(with).message();
  if (name == kElasticAveraging) {
    const auto rate = train::moving_rate_of(with.elastic, workers);
    return rate.ok() ? "" : rate.status().message() + "; change strategy.moving_rate";
  }
  if (name == kDownpour && with.strategy.exchange.every_step()) {
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
  const Errors wrong = train::check_recipe(parsed, options.cluster.workers);
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
class Progress {
 public:
  Progress(std::string policy, std::int64_t gradients)
      : policy_(std::move(policy)), gradients_(gradients), shows_(terminal_columns() > 0) {}
  ~Progress() {
    if (shown_) std::fputs("\r\x1b[2K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

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

Result<std::optional<SimulatedScore>> score(const train::Task& task,
                                            const std::vector<train::EvalSplit>& splits) {
  if (splits.empty()) return std::optional<SimulatedScore>();
  auto split = std::ranges::find(splits, "test", &train::EvalSplit::name);
  if (split == splits.end()) split = splits.begin();
  STORMO_ASSIGN_OR_RETURN(const auto alone, comm::make_inproc_group(1));
  STORMO_ASSIGN_OR_RETURN(const train::Evaluation result,
                          train::evaluate(*alone.front(), task, *split));
  return std::optional(
      SimulatedScore{.split = split->name, .loss = result.loss, .accuracy = result.accuracy});
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

class Simulator {
 public:
  Simulator(const train::Recipe& recipe, train::RecipeData data, const SimulateOptions& options)
      : recipe_(recipe), data_(std::move(data)), cluster_(options.cluster) {
    const data::Sampler sampler(data_.train->size(), recipe.train.global_batch, recipe.train.seed,
                                /*shuffle=*/true, 0, 1);
    cluster_.steps =
        recipe.train.steps > 0 ? recipe.train.steps : sampler.steps_until(0, recipe.train.epochs);
    const std::int64_t steps =
        std::min({kLossSteps, sampler.steps_per_epoch(), (cluster_.steps + 9) / 10});
    window_ = static_cast<std::size_t>(std::max<std::int64_t>(steps, 1) * cluster_.workers);
  }

  Simulation empty() const {
    return {.name = recipe_.train.name,
            .global_batch = recipe_.train.global_batch,
            .cluster = cluster_};
  }

  Result<SimulatedPolicy> run(const std::string& policy) const {
    const auto start = WallClock::now();
    SimulatedPolicy p{.policy = policy};
    STORMO_ASSIGN_OR_RETURN(const train::Task task, train::make_task(recipe_, data_.preprocessing));
    const train::TrainerOptions options = options_with(recipe_.train, policy);
    Progress progress(p.policy, cluster_.steps * cluster_.workers);
    STORMO_ASSIGN_OR_RETURN(
        const train::SimulatedTraining trained,
        train::simulate_training(task, *data_.train, options, cluster_,
                                 [&](const auto& step) { progress.step(step); }));
    count(trained.outcome, p);
    p.diverged = trained.diverged.has_value();
    for (const train::SimulatedTraining::Step& s : trained.steps) {
      if (!std::isfinite(s.loss)) continue;
      p.losses.push_back({.at = s.at, .loss = s.loss, .samples = static_cast<double>(s.samples)});
    }
    p.means = running_means(p.losses, window_);
    if (!p.diverged) {
      p.weights_hash = train::weights_hash(train::named_state(*task.module));
      STORMO_ASSIGN_OR_RETURN(p.score, score(task, data_.splits));
    }
    p.wall_s = std::chrono::duration<double>(WallClock::now() - start).count();
    return p;
  }

 private:
  const train::Recipe& recipe_;
  train::RecipeData data_;
  protocol::VirtualCluster cluster_;
  std::size_t window_ = 1;  // gradients that the train loss is the mean of
};

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
  for (const std::string& warning : data.warnings)
    fmt::print(stderr, "warning: {}\n", printable(warning));
  const Simulator simulator(recipe, std::move(data), options);
  Simulation simulation = simulator.empty();
  for (const std::string& policy : options.policies) {
    STORMO_ASSIGN_OR_RETURN(SimulatedPolicy p, simulator.run(policy));
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
    if (!recorded.ok()) return fail(a, kExitUsage, {"--times: " + recorded.status().message()});
    times = std::move(*recorded);
    a.workers = static_cast<int>(times.steps.size());
    a.latency = "0s";  // the times have it
  }
  SimulateOptions options = to_simulate_options(a, wrong);
  options.cluster.times = std::move(times.steps);
  options.cluster.leaves = std::move(times.leaves);
  train::ParsedRecipe parsed = train::load_recipe(a.recipe, a.overrides);
  options.policies = policies_of(parsed.recipe, a, options.policies);
  use_servers(parsed.recipe);
  const Errors problems = problems_of(parsed, options);
  wrong.insert(wrong.end(), problems.begin(), problems.end());
  if (!wrong.empty()) return fail(a, kExitUsage, wrong);
  Status done;
  try {
    done = simulate(a, parsed.recipe, options);
  } catch (...) {
    done = train::failure_of_current_exception();
  }
  if (done.ok()) return kExitOk;
  const bool usage = done.code() == Code::kInvalidArgument || done.code() == Code::kNotFound;
  return fail(a, usage ? kExitUsage : kExitFailed, {done.message()});
}

}  // namespace stormo::cli
