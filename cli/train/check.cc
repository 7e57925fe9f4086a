#include <cli/train/check.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <cli/commands.h>
#include <cli/output_path.h>
#include <cli/own_program.h>
#include <cli/plan/search.h>
#include <cli/plan/step.h>
#include <cli/train/otlp.h>
#include <cli/train/report.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/membership/register_address.h>
#include <stormo/train/elastic/membership_log.h>
#include <stormo/train/elastic/membership_replay.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/planner/measure_on_ranks.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/prepare/column_data.h>
#include <stormo/train/prepare/initial_weights.h>
#include <stormo/train/step/elastic_check.h>
#include <stormo/train/step/strategy.h>
#include <stormo/transport/memory/address_space.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;
using Errors = std::vector<std::string>;

/// So long a rank may be stopped: the others go on without it after one.
constexpr double kSilencesOfAStop = 4;

/// As checkpoint::probe_checkpoint_directory, but leaves no folder behind.
Status try_folder(const std::string& directory) {
  std::vector<fs::path> missing;  // the deepest first
  std::error_code ignored;
  for (fs::path p = fs::absolute(directory); !fs::exists(p, ignored); p = p.parent_path()) {
    missing.push_back(p);
  }
  const Status status = checkpoint::probe_checkpoint_directory(directory);
  for (const fs::path& p : missing) fs::remove(p, ignored);  // what is not empty stays
  return status;
}

/// Whether what the run will read and write beside its data can be; leaves everything as it was.
void check_files(const train::ParsedRecipe& parsed, const TrainArguments& a, Errors& errors) {
  const auto note = [&](const Status& status) {
    if (!status.ok()) errors.push_back(status.message());
  };
  if (!a.trace.empty()) note(check_output_path(a.trace).within("--trace"));
  if (!a.log_csv.empty()) note(check_output_path(a.log_csv).within("--log-csv"));
  if (!a.tensorboard.empty()) {
    note(check_output_folder(a.tensorboard, {}).within("--tensorboard"));
  }
  std::error_code ignored;
  const bool taken = !a.record.empty() && fs::exists(a.record, ignored) &&
                     !(fs::is_directory(a.record, ignored) && fs::is_empty(a.record, ignored));
  if (taken) {
    errors.push_back("--record: '" + a.record + "' is there already; name a new or empty folder");
  } else if (!a.record.empty() && errors.empty()) {
    note(try_folder(a.record).within("--record"));
  }
  check_checkpoints(parsed, parsed.recipe.train.resume, a.overwrite, a.accept_changes, errors);
}

/// A log of members that is to be replayed.
void check_replay(const train::Recipe& recipe, int ranks, Errors& errors) {
  const std::string& log = recipe.elastic.register_address;
  if (!train::is_membership_log(log)) return;
  if (recipe.train.strategy.pipeline > 1) {
    errors.emplace_back(
        "elastic.register: a log of members does not say who had which stage, so pipelines are not "
        "replayed; leave it out");
    return;
  }
  if (train::trains_locally(recipe.train.strategy.kind)) {
    errors.emplace_back(
        "elastic.register: a log of members does not say whose averages were lost, so only 'ddp' "
        "is "
        "replayed; leave it out");
    return;
  }
  const Status status = train::open_membership_log(log, ranks).status().within("elastic.register");
  if (!status.ok()) errors.push_back(status.message());
  const std::string own = train::membership_log_in(recipe.train.checkpoint.directory);
  std::error_code ignored;
  if (fs::equivalent(log.substr(log.find("//") + 2), own, ignored)) {
    errors.push_back("elastic.register: the run would write its own log of members over '" + own +
                     "'; write another checkpoint.directory");
  }
}

/// The data, unless there are errors.
std::optional<train::RecipeData> check_run_data(const train::ParsedRecipe& parsed,
                                                const TrainArguments& a, int ranks,
                                                Errors& errors) {
  if (!train::reads_columns(parsed.recipe, ranks)) {
    return check_data(parsed, parsed.recipe.train.resume, a.accept_changes, errors);
  }
  if (!errors.empty()) return std::nullopt;  // each rank looks at its own
  return train::described_columns(parsed.recipe);
}

/// --metrics, as far as any host can tell.
void check_metrics(const TrainArguments& a, Errors& errors) {
  if (a.metrics.empty()) {
    if (!a.metrics_token.empty()) errors.push_back("--metrics-token is for --metrics; add it");
    return;
  }
  const Result<transport::HostPort> address = transport::parse_host_port(a.metrics);
  const bool has_port = address.ok() && (address->port != 0 || a.metrics.ends_with(":0"));
  if (has_port) return;
  errors.push_back(address.ok() ? fmt::format("--metrics: '{}' has no port; write ADDRESS:PORT, "
                                              "e.g. 127.0.0.1:9464",
                                              a.metrics)
                                : "--metrics: " + address.status().message());
}

std::vector<int> sizes_of(const std::vector<launch::HostShare>& shares) {
  std::vector<int> out;
  for (const launch::HostShare& share : shares) out.push_back(share.ranks);
  return out;
}

int ranks_of(const std::vector<launch::HostShare>& shares) {
  return shares.back().first_rank + shares.back().ranks;
}

/// What every rank will do in a step, if this host has the memory for its share of them. `key`:
/// where the recipe names the strategy.
Result<StepInput> check_step(const train::Recipe& recipe, const std::string& key,
                             const train::Task& task, const std::vector<launch::HostShare>& shares,
                             std::uint64_t available_bytes) {
  const std::vector<int> ranks_per_host = sizes_of(shares);
  STORMO_RETURN_IF_ERROR(
      check_servers(recipe.train, train::trainable_parameters(*task.module), ranks_per_host));
  Result<StepInput> planned = train::planned_step(
      recipe.train, task, train::workers_per_host(recipe.train, ranks_per_host));
  if (!planned.ok()) return Status(planned.status().code(), key + planned.status().message());
  StepInput step = std::move(*planned);
  STORMO_RETURN_IF_ERROR(check_served_parts(recipe.train, step.plan,
                                            train::workers_of(recipe.train, ranks_of(shares))));
  STORMO_RETURN_IF_ERROR(check_fits(step, ranks_here(shares), available_bytes));
  return step;
}

/// strategy.kind=auto: the keys of the fastest strategy that fits.
Result<std::vector<std::string>> choose_strategy(const train::Recipe& recipe,
                                                 const train::Task& task,
                                                 const train::RecipeData& data,
                                                 const std::vector<launch::HostShare>& shares,
                                                 std::uint64_t available_bytes) {
  const std::vector<int> ranks_per_host = sizes_of(shares);
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> keys,
                          fastest_keys(recipe, task, *data.train, ranks_per_host,
                                       train::memory_of_a_rank(available_bytes, ranks_per_host)));
  fmt::print(stderr, "strategy.kind=auto: {}\n", fmt::join(keys, " "));
  return keys;
}

bool is_auto(const train::Recipe& recipe) {
  return recipe.train.strategy.kind == train::Strategy::Kind::kAuto;
}

/// See SoundRun.
bool looks_at_data(const train::Recipe& recipe, const TrainArguments& a) {
  const bool takes_others = !recipe.init.from.empty() && !recipe.train.resume;
  return a.dry_run || is_auto(recipe) || recipe.train.servers.processes > 0 || takes_others ||
         recipe.train.strategy.kind == train::Strategy::Kind::kVertical;
}

/// What is made of the data.
Status add_model(SoundRun& run, const TrainArguments& a,
                 const std::vector<launch::HostShare>& shares, std::uint64_t available_bytes) {
  train::Recipe& recipe = run.parsed.recipe;
  STORMO_ASSIGN_OR_RETURN(
      run.task, train::make_task(recipe, run.data->preprocessing, train::InitialValues::kWithout));
  if (is_auto(recipe)) {
    STORMO_ASSIGN_OR_RETURN(run.chosen,
                            choose_strategy(recipe, run.task, *run.data, shares, available_bytes));
    TrainArguments with_keys = a;
    with_keys.overrides.insert(with_keys.overrides.end(), run.chosen.begin(), run.chosen.end());
    recipe = recipe_of(with_keys).recipe;
  }
  if (!recipe.train.resume) {
    STORMO_RETURN_IF_ERROR(train::check_initial_weights(recipe, *run.task.module));
  }
  STORMO_ASSIGN_OR_RETURN(run.step, check_step(recipe, run.parsed.at("strategy.kind"), run.task,
                                               shares, available_bytes));
  return {};
}

/// Ranks that may be lost: workers but the first one; where servers have copies, any.
launch::RanksToLose may_be_lost(const train::TrainerOptions& o, int ranks) {
  if (o.servers.processes == 0) return {};
  if (o.servers.backups) return {.first = 0, .count = ranks, .servers = o.servers.processes};
  const auto first = static_cast<int>(ranks_of_worker(o.strategy));
  return {.first = first, .count = ranks - first - o.servers.processes};
}

std::optional<launch::Elastic> elastic_of(const train::Recipe& recipe) {
  if (!recipe.train.commits) return {};
  const std::int64_t shards = recipe.train.logical_shards;
  const std::int64_t parts = shards > 0 ? shards : recipe.train.global_batch;
  const std::string& address = recipe.elastic.register_address;
  return launch::Elastic{
      .register_address = address,
      .replaces = !train::is_membership_log(address),
      .longest_stop = std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(kSilencesOfAStop * recipe.elastic.silence_s)),
      .min_ranks = static_cast<int>(recipe.elastic.min_ranks),
      .max_ranks = static_cast<int>(std::min<std::int64_t>(parts, launch::kMaxRanks)),
      .adds_places = recipe.train.strategy.pipeline == 1};
}

/// Whether an elastic run can use the register that it names; nothing is connected.
Status check_register(const train::ParsedRecipe& parsed) {
  const std::string& address = parsed.recipe.elastic.register_address;
  const bool asks_register = !address.empty() && !train::is_membership_log(address);
  if (!parsed.recipe.train.commits || !asks_register) return {};
  const Status status = membership::open_register(address, {}).status();
  return status.ok() ? status : invalid_argument(parsed.at("elastic.register") + status.message());
}

/// Also if it cannot be used: then resuming says why, and nothing begins in its place.
bool has_checkpoint(const std::string& directory) {
  return !directory.empty() &&
         checkpoint::newest_checkpoint(directory).status().code() != Code::kNotFound;
}

}  // namespace

std::optional<train::RecipeData> check_data(const train::ParsedRecipe& parsed, bool resume,
                                            const std::vector<std::string>& accept_changes,
                                            Errors& errors) {
  // A data key that could not be read would send the search to the default place.
  const bool data_known =
      std::none_of(parsed.errors.begin(), parsed.errors.end(),
                   [](const auto& e) { return e.find("data.") != std::string::npos; });
  if (!data_known) return std::nullopt;
  Result<train::RecipeData> data = train::load_data(parsed.recipe);
  if (!data.ok()) {
    errors.push_back(data.status().message());
    return std::nullopt;
  }
  const Status same =
      resume ? train::check_same_data(parsed.recipe, *data, accept_changes) : Status();
  if (!same.ok()) errors.push_back("--resume: " + same.message());
  return std::move(*data);
}

void check_checkpoints(const train::ParsedRecipe& parsed, bool resume, bool overwrite,
                       const std::vector<std::string>& accept_changes, Errors& errors) {
  const std::string& directory = parsed.recipe.train.checkpoint.directory;
  if (directory.empty()) return;
  const Status status = resume ? train::check_resume(parsed, accept_changes).within("--resume")
                               : checkpoint::begin_run(directory, overwrite).status();
  if (!status.ok()) errors.push_back(status.message());
  if (!errors.empty()) return;
  const Status writable = try_folder(directory);
  if (!writable.ok()) errors.push_back(writable.message());
}

Status print_checked_run(CheckedRun run) {
  STORMO_ASSIGN_OR_RETURN(run.program, own_program());
  const char* libraries = std::getenv("LD_LIBRARY_PATH");
  if (libraries != nullptr) run.library_path = libraries;
  fmt::print("{}", to_text(run));
  return {};
}

int fail_usage(const std::vector<std::string>& errors, bool json) {
  return say_failed("train", kExitUsage, errors, json);
}

train::ParsedRecipe recipe_of(const TrainArguments& a) {
  std::vector<std::string> overrides = a.overrides;
  if (!a.checkpoint.empty()) overrides.push_back("checkpoint.directory=" + a.checkpoint);
  if (!a.init_from.empty()) overrides.push_back("train.init_from=" + a.init_from);
  if (!a.init_new.empty()) {
    overrides.push_back(fmt::format("train.init_new={}", fmt::join(a.init_new, ",")));
  }
  train::ParsedRecipe parsed = train::load_recipe(a.recipe, overrides);
  parsed.recipe.train.resume =
      a.resume || (a.auto_resume && has_checkpoint(parsed.recipe.train.checkpoint.directory));
  parsed.recipe.train.overwrite = a.overwrite;
  const bool may_resume = a.resume || a.auto_resume;
  const char* const resume = a.resume ? "--resume" : "--auto-resume";
  if (!a.record.empty()) parsed.recipe.train.record = fs::absolute(a.record);
  if (may_resume && a.overwrite) {
    parsed.errors.push_back(
        fmt::format("{} goes on from checkpoints, --overwrite replaces them; give one", resume));
  }
  if (!a.record.empty() &&
      parsed.recipe.train.strategy.kind != train::Strategy::Kind::kParameterServer) {
    parsed.errors.push_back(
        "--record writes the order of reads and pushes at parameter servers; use "
        "strategy.kind=parameter_server");
  }
  check_metrics(a, parsed.errors);
  if (const Status otlp = check_otlp(a); !otlp.ok()) parsed.errors.push_back(otlp.message());
  if (!a.accept_changes.empty() && !may_resume) {
    parsed.errors.push_back("--accept-changes is of a run that goes on; add --resume");
  }
  if (!a.record.empty() && !parsed.recipe.init.from.empty()) {
    parsed.errors.push_back(
        "--record is of a run that begins with its own weights; leave out "
        "train.init_from");
  }
  if (!a.record.empty() && may_resume) {
    parsed.errors.push_back(fmt::format("--record is of a whole run; leave out {}", resume));
  }
  parsed.recipe.train.on_usr1 = a.on_usr1 == "save"     ? train::OnUsr1::kSave
                                : a.on_usr1 == "ignore" ? train::OnUsr1::kIgnore
                                                        : train::OnUsr1::kSaveAndExit;
  return parsed;
}

Errors problems_of_rank(const train::ParsedRecipe& parsed, const TrainArguments& a, int ranks,
                        bool look_at_files) {
  Errors errors = parsed.errors;
  if (!parsed.readable) return errors;
  const Errors wrong = train::check_recipe(parsed, ranks);
  errors.insert(errors.end(), wrong.begin(), wrong.end());
  if (look_at_files) check_files(parsed, a, errors);
  return errors;
}

std::optional<SoundRun> check_run(const train::ParsedRecipe& parsed, const TrainArguments& a) {
  const auto refuse = [&](const Errors& errors) {
    fail_usage(errors, a.json);
    return std::optional<SoundRun>();
  };
  if (!parsed.readable) return refuse(parsed.errors);  // not what defaults lack
  Errors errors = parsed.errors;
  const std::uint64_t available = launch::available_memory();  // before the data are in it
  const std::vector<launch::HostShare> shares = place_of_ranks(a.launch, errors);
  static_cast<void>(train_launch_options(a, errors));
  if (ranks_here(shares) > 1) {
    const Status files = transport::check_file_limit();
    if (!files.ok()) errors.push_back(files.message());
  }
  const int computing = std::max(1, train::ranks_of_workers(parsed.recipe.train, ranks_of(shares)));
  const Errors wrong = train::check_recipe(parsed, computing);
  errors.insert(errors.end(), wrong.begin(), wrong.end());
  const Status reg = check_register(parsed);
  if (!reg.ok()) errors.push_back(reg.message());
  SoundRun run{.ranks = ranks_of(shares), .parsed = parsed};
  if (looks_at_data(parsed.recipe, a)) {
    run.data = check_run_data(parsed, a, run.ranks, errors);
    if (errors.empty()) {
      const Status made = add_model(run, a, shares, available);
      if (!made.ok()) errors.push_back(made.message());
    }
  }
  check_files(parsed, a, errors);
  check_replay(parsed.recipe, run.ranks, errors);
  return errors.empty() ? std::optional(std::move(run)) : refuse(errors);
}

int check_train(const TrainArguments& a) {
  const train::ParsedRecipe parsed = recipe_of(a);
  std::optional<SoundRun> run = check_run(parsed, a);
  if (!run) return kExitUsage;
  // ranks of other hosts may not see the checkpoints
  if (parsed.recipe.train.resume && !a.resume) run->chosen.emplace_back("--resume");
  const Status printed =
      print_checked_run({.checkpoint_directory = parsed.recipe.train.checkpoint.directory,
                         .may_be_lost = may_be_lost(parsed.recipe.train, run->ranks),
                         .elastic = elastic_of(parsed.recipe),
                         .chosen = run->chosen});
  return printed.ok() ? kExitOk : fail_usage({printed.message()}, a.json);
}

}  // namespace stormo::cli
