#include <cli/train/rank.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include <cli/build_facts.h>
#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/output_path.h>
#include <cli/plan/step.h>
#include <cli/train/check.h>
#include <cli/train/choice/traffic.h>
#include <cli/train/otlp.h>
#include <cli/train/report.h>
#include <cli/train/reports.h>
#include <cli/train/trace_file.h>
#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/base/version.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/failure.h>
#include <stormo/train/loop/no_launcher.h>
#include <stormo/train/loop/run_facts.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/prepare/column_data.h>
#include <stormo/train/prepare/initial_weights.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

/// How long an interrupted run waits for a reader that does not read.
constexpr Duration kLastOutputTime = std::chrono::seconds(1);

/// Where a stall leaves the last operations of all ranks, unless the environment says; empty: where
/// it does without a choice.
std::string flight_file_of(const TrainRun& run) {
  if (!run.words.trace.empty()) return run.words.trace + ".flight.json";
  const std::string& checkpoints = run.parsed.recipe.train.checkpoint.directory;
  return checkpoints.empty() ? "" : checkpoints + "/flight.json";
}

/// Of an elastic job; nothing where the launcher has not started one.
std::optional<train::ElasticPlace> elastic_place(const train::Recipe& recipe,
                                                 const transport::Rendezvous& place) {
  const launch::EnvironmentReader read = launch::process_environment();
  const auto address = read("STORMO_REGISTER"), job = read("STORMO_JOB");
  if (!recipe.train.commits || !address || !job) return {};
  const auto start = number_in<std::uint64_t>(read("STORMO_INCARNATION").value_or("1"));
  return train::ElasticPlace{.place = place,
                             .register_address = *address,
                             .job = *job,
                             .incarnation = start.value_or(1),
                             .min_ranks = static_cast<std::size_t>(recipe.elastic.min_ranks),
                             .silence = std::chrono::duration_cast<Duration>(
                                 std::chrono::duration<double>(recipe.elastic.silence_s))};
}

/// A rank of an elastic job goes on without its launcher, unless that is not wanted.
std::shared_ptr<launch::Outliving> outlive(const TrainRun& run) {
  const std::string wanted = launch::process_environment()(launch::kOutlivesVariable).value_or("");
  if (!wanted.empty() && wanted != "0" && wanted != "1") {
    throw_if_error(invalid_argument(
        fmt::format("{} is '{}': use 0 or 1", launch::kOutlivesVariable, message_text(wanted))));
  }
  const transport::Rendezvous& place = run.elastic->place;
  if (!launch::outlives_launcher(wanted, place.cross_size)) return nullptr;
  const std::string& folder = run.parsed.recipe.train.checkpoint.directory;
  const std::string output = fmt::format("{}{}rank-{}-{}", folder, folder.empty() ? "" : "/",
                                         place.host, place.local_rank);
  const bool is_orphan = launch::process_environment()(launch::kNoLauncherVariable).has_value();
  if (is_orphan) train::expect_no_launcher();
  const auto tell = [who = run.elastic->identity(), output] {
    std::cerr << fmt::format(
        "{}: warning: the launcher has ended, or its connection to this host. Training goes on. "
        "Output goes on in {}.out and {}.err. To end the run: kill -TERM {} here\n",
        who, output, output, ::getpid());
  };
  auto begun =
      launch::Outliving::begin({.output = output, .on_orphaned = tell, .is_orphan = is_orphan});
  if (begun.ok()) return *std::move(begun);
  std::cerr << fmt::format("{}: warning: this rank ends with the launcher: {}\n",
                           run.elastic->identity(), message_text(begun.status().message()));
  return nullptr;
}

/// Whether this process begins the run. It evaluates, saves and reports.
bool begins_run(const TrainRun& run, const World& world) {
  if (run.elastic && run.elastic->joins_later()) return false;
  return world.rank() == 0 && (run.session == nullptr || run.session->opens());
}

/// Whether it evaluates, saves and reports now: another one may have begun the run.
bool is_first(const TrainRun& run, const World& world) {
  return world.rank() == 0 && (run.session == nullptr || run.session->is_chief());
}

/// The group of all ranks; with server processes that of the ranks of this worker.
World enter_world(TrainRun& run) {
  const auto of_recipe = static_cast<int>(run.parsed.recipe.threads);
  const int threads = of_recipe > 0 ? of_recipe : run.threads;
  const bool in_session = run.session != nullptr;
  transport::Rendezvous place = run.worker_ranks;
  if (!in_session && run.words.engine == "stormo") {
    place = launch::read_environment(launch::process_environment()).take_or_throw();
  }
  if (place.flight_file.empty()) place.flight_file = flight_file_of(run);
  const std::string engine = in_session ? "stormo" : run.words.engine;
  if (!in_session) run.elastic = elastic_place(run.parsed.recipe, place);
  if (run.elastic) {
    run.outliving = outlive(run);
    auto first = train::first_world(*run.elastic).take_or_throw();
    run.epochs = first.get();
    return stormo::init(std::move(first), threads);
  }
  World world = stormo::init(join_world(engine, place).take_or_throw(), threads);
  if (run.rank_session) run.rank_session->use(world.communicator());
  return world;
}

train::TrainerOptions options_of(const TrainRun& run) {
  train::TrainerOptions options = run.parsed.recipe.train;
  options.session = run.session;
  return options;
}

/// What is wrong with recipe and flags of this process: then no rank trains.
Status problem_of(const TrainRun& run, const comm::Communicator& group) {
  if (run.is_checked) return {};
  const int number = run.session ? run.session->worker() : group.rank();
  // one that is started again is alone as yet
  const int ranks = run.elastic ? run.elastic->place.size : group.size();
  const std::vector<std::string> problems =
      problems_of_rank(run.parsed, run.words, train::ranks_of_workers(options_of(run), ranks),
                       !run.launched && number == 0);
  return problems.empty() ? Status()
                          : invalid_argument(fmt::format("{}", fmt::join(problems, "\n")));
}

std::vector<comm::Fact> facts_of(const TrainRun& run) {
  std::vector<comm::Fact> facts = train::recipe_facts(run.parsed.recipe);
  facts.insert(facts.begin(), {{"stormo", std::string(kVersion) + ", git " + kGitHash + ", " +
                                              kCompiler + ", " + kBuildType},
                               {"--trace", run.words.trace.empty() ? "no" : "yes"}});
  return facts;
}

/// A recipe's data and model.
struct Prepared {
  train::RecipeData data;
  train::Task task;
};

/// A new run whose weights are those of a checkpoint at first.
bool begins_with_others(const train::Recipe& recipe) {
  return !recipe.init.from.empty() && !recipe.train.resume;
}

/// Bytes of initial values that a rank makes with the model, once, because it needs all of them in
/// any case: at most half of the memory that it has. Ranks with parts of a model wait for the plan.
std::int64_t bytes_made_at_once(const train::Strategy& s, const World& world) {
  using Kind = train::Strategy::Kind;
  const bool may_cut = s.kind == Kind::kFsdp || s.kind == Kind::kVertical || s.kind == Kind::kAuto;
  if (may_cut || ranks_of_replica(s) > 1) return 0;
  const auto ranks = static_cast<std::uint64_t>(world.local_size());
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(launch::available_memory() / ranks / 2, INT64_MAX));
}

/// Weights that come from elsewhere go to the whole model, which ranks divide later.
Result<train::Task> new_task(const train::Recipe& recipe, const train::Preprocessing& data,
                             const World& world) {
  return train::make_task(
      train::recipe_of_member(recipe, world.communicator().rank()), data,
      begins_with_others(recipe) ? train::InitialValues::kNow : train::InitialValues::kLater,
      bytes_made_at_once(recipe.train.strategy, world));
}

/// What ranks must have in common that have columns of the same samples. The Trainer compares it
/// too, but after join_columns(), and not by these names.
std::vector<comm::Fact> sample_facts(const train::Recipe& recipe, const train::RecipeData& data) {
  std::vector<comm::Fact> facts;
  const auto add = [&](const std::string& split, const data::Dataset& samples) {
    facts.push_back({"rows of " + split, std::to_string(samples.size())});
    if (recipe.data.id.empty()) return;
    facts.push_back({"values of data.id, " + split, fmt::format("{:016x}", samples.fingerprint())});
  };
  if (data.train) add("training", *data.train);
  for (const train::EvalSplit& split : data.splits) add(split.name, *split.dataset);
  return facts;
}

/// The same, where each rank has columns of the samples. What is wrong on one rank, all refuse.
Result<Prepared> prepare_columns(const TrainRun& run, const World& world,
                                 train::TrainerOptions& options) {
  comm::Communicator& group = world.communicator();
  const train::Recipe& recipe = run.parsed.recipe;
  Result<train::RecipeData> own = train::load_columns(recipe, {group.rank(), group.size()});
  std::vector<comm::Fact> facts;
  if (own.ok()) facts = sample_facts(recipe, *own);
  STORMO_RETURN_IF_ERROR(comm::check_agreement(group, std::move(facts), own.status()));
  STORMO_ASSIGN_OR_RETURN(const train::JoinedColumns joined,
                          train::join_columns(group, recipe, own->preprocessing));
  own->preprocessing = joined.preprocessing;
  options.strategy.column_counts = joined.counts;
  if (options.resume) {
    STORMO_RETURN_IF_ERROR(train::check_same_data(recipe, *own).within("--resume"));
  }
  STORMO_ASSIGN_OR_RETURN(train::Task task, new_task(recipe, own->preprocessing, world));
  return Prepared{std::move(*own), std::move(task)};
}

/// The process that begins the run looks at what was saved before.
Result<Prepared> prepare(const TrainRun& run, const World& world) {
  Result<train::RecipeData> data = run.data ? *run.data : train::load_data(run.parsed.recipe);
  STORMO_RETURN_IF_ERROR(data.status());
  if (begins_run(run, world) && run.parsed.recipe.train.resume) {
    STORMO_RETURN_IF_ERROR(
        train::check_same_data(run.parsed.recipe, *data, run.words.accept_changes)
            .within("--resume"));
  }
  STORMO_ASSIGN_OR_RETURN(train::Task task,
                          new_task(run.parsed.recipe, data->preprocessing, world));
  return Prepared{std::move(*data), std::move(task)};
}

/// What is thrown here is refused with the others, and told once.
Result<Prepared> try_prepare(const TrainRun& run, const World& world) {
  try {
    return prepare(run, world);
  } catch (...) {
    return train::failure_of_current_exception();
  }
}

/// A collective. What is wrong here was the user's choice, also where a rank is alone.
Status refuse_together(comm::Communicator& group, const Status& problem,
                       std::vector<comm::Fact> facts = {}) {
  const Status status = comm::check_agreement(group, std::move(facts), problem);
  const bool alone = group.size() == 1 && !problem.ok();
  return alone ? Status(Code::kRefused, status.message()) : status;
}

/// Whether there is a plan, and this host has the memory for what its ranks keep in a step. All
/// have read their data.
Status check_plan(const TrainRun& run, const World& world, const torch::nn::Module& model,
                  const train::Trainer& trainer) {
  const Status& composed = trainer.composed();
  if (!composed.ok())
    return Status(composed.code(), run.parsed.at("strategy.kind") + composed.message());
  const plan::StepPlan& plan = trainer.plan();
  const bool checked = run.session != nullptr;  // see SoundRun
  if (!run.checks_memory || checked || plan.actions.empty()) return {};
  ::malloc_trim(0);  // of segments that were made and dropped
  std::uint64_t available = launch::available_memory();
  for (const torch::Tensor& p : model.parameters()) {  // what it has already, it keeps
    if (!tensor::has_memory(p)) continue;
    available += p.nbytes() * static_cast<std::uint64_t>(world.local_size());
  }
  return check_fits({.plan = plan, .memory = train::memory_sizes_of(run.parsed.recipe.train)},
                    world.local_size(), available);
}

/// How far a run came, whatever its outcome.
struct Progress {
  bool started = false;  ///< it came as far as the first step
  std::string saved;     ///< its newest checkpoint
};

/// Null: the job is no elastic one.
std::unique_ptr<train::ElasticSession> elastic_session(const TrainRun& run) {
  if (!run.elastic) return nullptr;
  return std::make_unique<train::ElasticSession>(
      *run.epochs, *run.elastic,
      train::ElasticSession::Outside{
          .say = [who = run.elastic->identity()](
                     const std::string& line) { std::cerr << who + ": " + line + "\n"; },
          .is_asked_to_stop = [] { return train::StopSignal::received() != 0; },
          .is_asked_to_leave =
              [] {
                return train::StopSignal::asked_to_leave() != train::StopSignal::Leave::kNotAsked;
              }});
}

/// Whether its members have stages of the model.
bool has_parts(const train::ElasticSession& session) {
  return std::ranges::any_of(session.record().members,
                             [](const protocol::ElasticEntry& m) { return m.part != 0; });
}

/// The launcher knows whom it has told to leave.
int exit_code_of_leaver() {
  const bool is_told = train::StopSignal::asked_to_leave() == train::StopSignal::Leave::kByLauncher;
  return is_told ? kExitOk : protocol::kHasLeft;
}

void warn_of(const TrainRun& run, const train::RecipeData& data) {
  for (const auto* lines : {&run.parsed.left_out, &data.warnings, &data.hints}) {
    for (const std::string& line : *lines) std::cerr << "warning: " << message_text(line) << "\n";
  }
}

Status begin_trace(const TrainRun& run, comm::Communicator& group, train::Trainer& trainer,
                   std::optional<TraceFile>& trace) {
  const int part = run.session ? run.session->worker() : 0;
  const std::string path = trace_part_path(run.words.trace, part);
  trainer.set_sink(&trace.emplace(group, path, run.words.engine == "stormo").sink());
  return trace->begin();
}

/// Of a new run, in place of the initial ones.
Status load_other_weights(const TrainRun& run, const World& world, Prepared& prepared) {
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<std::string> lines,
      train::load_initial_weights(run.parsed.recipe, prepared.data.preprocessing,
                                  *prepared.task.module));
  if (!begins_run(run, world)) return {};
  for (const std::string& line : lines) std::cerr << printable(line) << "\n";
  return {};
}

/// Returns the exit code. What it refuses before the first step, it refuses on all ranks.
Result<int> train_as_rank(World& world, const TrainRun& run, Outlets& outlets, Progress& progress) {
  comm::Communicator& group = world.communicator();
  Status problem = problem_of(run, group);
  if (problem.ok() && begins_run(run, world)) problem = open_monitor(run, outlets);
  STORMO_RETURN_IF_ERROR(refuse_together(group, problem, facts_of(run)));
  train::TrainerOptions options = options_of(run);
  Result<Prepared> prepared = train::reads_columns(run.parsed.recipe, group.size())
                                  ? prepare_columns(run, world, options)
                                  : try_prepare(run, world);
  problem = prepared.status();
  const train::Recipe& recipe = run.parsed.recipe;
  const bool gives_values = begins_run(run, world) || is_population(recipe.train.strategy.kind);
  const bool takes_others = gives_values && begins_with_others(recipe);
  if (problem.ok() && takes_others)
    problem = train::check_initial_weights(recipe, *prepared->task.module);
  STORMO_RETURN_IF_ERROR(refuse_together(group, problem));
  auto& [data, task] = *prepared;
  if (begins_run(run, world)) warn_of(run, data);
  if (takes_others) STORMO_RETURN_IF_ERROR(load_other_weights(run, world, *prepared));
  STORMO_ASSIGN_OR_RETURN(const std::optional<ChosenTraffic> chosen,
                          settle_traffic(run, group, task, *data.train, options));
  options.preprocessing_json = train::to_json(data.preprocessing);
  train::Trainer trainer(group, task, data.train, data.splits, std::move(options));
  trainer.set_data_records(data.records);
  trainer.verify_state(run.parsed.recipe.verify_state);
  trainer.freeze_after(run.parsed.recipe.freeze_step);
  const std::unique_ptr<train::ElasticSession> elastic = elastic_session(run);
  trainer.set_elastic(elastic.get());
  STORMO_RETURN_IF_ERROR(refuse_together(group, check_plan(run, world, *task.module, trainer)));
  if (begins_run(run, world)) {
    STORMO_RETURN_IF_ERROR(open_reports(run, /*goes_on=*/false, outlets));
    trainer.set_observer(&outlets.reports->observer());
    if (chosen) outlets.reports->note(chosen->line, chosen->json);
  }
  trainer.on_lead([&]() -> Result<observe::RunObserver*> {
    const Status monitored = open_monitor(run, outlets);
    STORMO_RETURN_IF_ERROR(open_reports(run, /*goes_on=*/true, outlets));
    if (!monitored.ok()) {
      outlets.reports->errors() << "stormo train: " << message_text(monitored.message())
                                << "; the run goes on without\n";
    }
    return &outlets.reports->observer();
  });
  std::optional<TraceFile> trace;
  if (!run.words.trace.empty()) STORMO_RETURN_IF_ERROR(begin_trace(run, group, trainer, trace));

  const Result<observe::EndRecord> end = trainer.run();
  if (elastic && elastic->has_left_job()) return exit_code_of_leaver();
  // whoever had the state, or a part of it, is lost; rank 0, which would say it, may be, too, or
  // ends later than this one and is stopped by the launcher
  const bool is_left_over = elastic && end.status().code() == Code::kPeerLost &&
                            group.rank() != 0 && (!elastic->is_donor() || has_parts(*elastic));
  if (is_left_over) elastic->say(message_text(end.status().message()));
  progress = {trainer.started(), trainer.last_saved()};
  const bool interrupted = end.status().code() == Code::kInterrupted;
  if (!end.ok() && !interrupted) return end.status();
  if (trace) STORMO_RETURN_IF_ERROR(trace->finish());
  return interrupted ? 128 + trainer.interrupt_signal() : kExitOk;
}

/// Of an elastic job: checkpoints may be where another member writes them, which is lost.
bool saves_on_another_host(const TrainRun& run) {
  const train::CheckpointOptions& checkpoint = run.parsed.recipe.train.checkpoint;
  return run.elastic && run.elastic->place.cross_size > 1 && checkpoint.every > 0 &&
         !checkpoint.directory.empty();
}

/// Says why there was no run, or no end of it: to people and, on rank 0, to the program that reads
/// standard output. Returns the exit code.
int fail(const TrainRun& run, std::optional<Reports>& reports, bool is_rank_0,
         const observe::ErrorRecord& record) {
  if (reports) {
    reports->fail(record);
  } else {
    std::cerr << "stormo train: " << message_text(record.message) << "\n";
    if (run.words.json && is_rank_0) write_error_event(record.exit_code, record.message);
  }
  return record.exit_code;
}

/// What a run whose first worker fails cannot mend by going on from a checkpoint: others must not
/// take it for lost.
void tell_servers(const TrainRun& run, const Status& failure) {
  if (!run.session || !run.session->is_chief() || failure.code() == Code::kPeerLost) return;
  run.session->fail(failure.message());
}

int join_and_train(TrainRun run, Outlets& outlets) {
  std::optional<Reports>& reports = outlets.reports;
  try {
    World world = enter_world(run);
    Progress progress;
    const Result<int> code = train_as_rank(world, run, outlets, progress);
    if (code.ok()) return *code;
    tell_servers(run, code.status());
    // All ranks know what all of them refuse; the logs of other hosts may be elsewhere.
    const bool refused = code.status().code() == Code::kRefused;
    const bool speaks_for_host = refused && !run.launched && world.local_rank() == 0;
    int exit_code = progress.started ? kExitFailed : exit_code_of(code.status());
    // a worker that is not the first one has saved nothing itself
    const bool is_served = run.session != nullptr && progress.started;
    if ((is_served || run.elastic) && progress.saved.empty()) {
      progress.saved = newest_checkpoint_of(run);
    }
    // members whose states differ without a majority cannot go on, nor can others in their place
    const bool is_lost = code.status().code() == Code::kPeerLost ||
                         (run.elastic && code.status().code() == Code::kMismatch);
    const bool saved = is_lost && (!progress.saved.empty() || saves_on_another_host(run));
    if (saved) exit_code = kExitSaved;
    const bool is_rank_0 = is_first(run, world);
    // A launcher ends all ranks: this one is leaving, and rank 0 will have said why.
    if (saved || (is_rank_0 && run.launched)) std::signal(SIGTERM, SIG_IGN);
    if (is_rank_0 || speaks_for_host || (run.session && !was_told(run, code.status()))) {
      fail(run, reports, is_rank_0, {exit_code, code.status().message()});
    }
    if ((is_rank_0 || run.session) && saved && !run.launched) {
      (reports ? reports->errors() : std::cerr) << how_to_continue(progress.saved) << "\n";
    }
    const bool all_know = refused || (run.elastic && code.status().code() == Code::kMismatch);
    if (world.size() > 1 && !all_know) world.communicator().fail(code.status());
    return exit_code;
  } catch (...) {
    const Status failure = train::failure_of_current_exception();
    tell_servers(run, failure);
    return fail(run, reports, run.rank == 0, {exit_code_of(failure), failure.message()});
  }
}

}  // namespace

bool was_told(const TrainRun& run, const Status& failure) {
  return run.launched && run.rank > 0 && failure.code() == Code::kCancelled;
}

std::string newest_checkpoint_of(const TrainRun& run) {
  const Result<std::string> newest =
      checkpoint::newest_checkpoint(run.parsed.recipe.train.checkpoint.directory);
  return newest.ok() && *newest != run.earlier ? *newest : "";
}

int run_rank(const TrainRun& run) {
  // Writing to a reader that has gone, or beyond `ulimit -f`, is an error, not a death.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const train::StopSignal notices(train::StopSignal::Scope::kNotices);
  set_access(run.parsed.recipe.access);
  // Outlives the group: other ranks must not wait for a reader.
  Outlets outlets;
  const int exit_code = join_and_train(run, outlets);
  close_otlp(outlets);
  if (!outlets.reports) return exit_code;
  // With a signal, or ended by a launcher that will not wait.
  const bool hurried = exit_code == kExitSaved || exit_code > 128;
  const bool all_said =
      outlets.reports->finish(hurried ? Deadline::after(kLastOutputTime) : Deadline::never());
  return exit_code == kExitOk && !all_said ? kExitFailed : exit_code;
}

}  // namespace stormo::cli
