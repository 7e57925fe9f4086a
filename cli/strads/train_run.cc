// `stormo strads train`: a rank, or all workers in virtual time.
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <cli/engine.h>
#include <cli/output_path.h>
#include <cli/strads/run.h>
#include <cli/strads/train.h>
#include <cli/strads/train_check.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/strads/round_plan.h>
#include <stormo/train/blocks/block_run.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/failure.h>
#include <stormo/train/run/run_facts.h>
#include <stormo/train/run/stop_signal.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

constexpr const char* kName = "strads train";

/// A collective: the signal by which a rank was told to stop; 0: none was.
Result<int> signal_of_any_rank(comm::Communicator& world) {
  std::int64_t told = train::StopSignal::received();
  if (told == 0 && train::StopSignal::take_usr1()) told = SIGUSR1;
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather({&told, 1, DType::kInt64}, all));
  return static_cast<int>(std::ranges::max(all));
}

void say(const Status& status) {
  fmt::print(stderr, "stormo {}: {}\n", kName, message_text(status.message()));
}

train::BlockTrainingOptions training_options(const StradsTrainArguments& a,
                                             const SoundTraining& sound) {
  const train::TrainerOptions& t = sound.recipe.train;
  return {.rate = t.optimizer.lr, .batch = t.global_batch, .units = a.units, .seed = t.seed};
}

/// Keys of the file without effect.
void tell_left_out(const train::ParsedRecipe& parsed) {
  for (const std::string& line : parsed.left_out) {
    fmt::print(stderr, "warning: {}\n", printable(line));
  }
}

/// Prints the plan of a round of so many workers; returns the exit code.
int dry_run(const StradsTrainArguments& a, const train::ParsedRecipe& parsed, int workers) {
  const auto plan = [&]() -> Result<plan::StepPlan> {
    STORMO_ASSIGN_OR_RETURN(const SoundTraining sound,
                            check_training(parsed, a, workers, /*look_at_checkpoints=*/true));
    STORMO_ASSIGN_OR_RETURN(const auto worker,
                            train::BlockTraining::make(sound.task, *sound.data.train,
                                                       training_options(a, sound), 0, workers));
    return strads::round_plan(
        worker->variables(), workers,
        schedule_options(a.schedule, worker->blocks(), a.common.seed, a.schedule.round),
        {.rounds = sound.rounds, .every = sound.every});
  }();
  if (!plan.ok()) {
    say(plan.status());
    return kExitUsage;
  }
  tell_left_out(parsed);
  print_round_plan(*plan, a.common.json);
  return kExitOk;
}

Result<std::unique_ptr<train::BlockRun>> begin(comm::Communicator& world,
                                               const StradsTrainArguments& a,
                                               const SoundTraining& sound) {
  const train::TrainerOptions& t = sound.recipe.train;
  std::vector<train::Task> tasks{sound.task};
  while (std::ssize(tasks) < a.common.virtual_workers.value_or(1)) {
    STORMO_ASSIGN_OR_RETURN(auto task, train::make_task(sound.recipe, sound.data.preprocessing));
    tasks.push_back(std::move(task));
  }
  const ScheduleArguments& s = a.schedule;
  STORMO_ASSIGN_OR_RETURN(
      auto run,
      train::BlockRun::begin(
          world, std::move(tasks), *sound.data.train,
          {.training = training_options(a, sound),
           .schedule =
               [&](auto blocks) { return schedule_options(s, blocks, a.common.seed, s.round); },
           .threshold = s.checks() ? std::optional(s.threshold) : std::nullopt,
           .loop = {.rounds = sound.rounds, .every = sound.every},
           .simulated = virtual_cluster(a.common),
           .checkpoint = checkpoint_options(a, sound),
           .save_every = t.checkpoint.every}));
  const std::int64_t done = run->rounds().scheduler().rounds_done();
  if (done <= sound.rounds) return run;
  return invalid_argument(fmt::format(
      "--resume: {} rounds are done, and the run has {}; give more --rounds", done, sound.rounds));
}

void print_heading(const SoundTraining& sound, train::BlockRun& run) {
  const strads::Workers& workers = run.rounds().workers();
  std::int64_t parameters = 0;
  for (const torch::Tensor& p : sound.task.module->parameters()) parameters += p.numel();
  fmt::print(
      "{}: {} parameters in {} blocks, {} pairs in conflict; {} samples, {} of them in a "
      "round; {} worker{}\n",
      sound.recipe.train.name, parameters, workers.first().blocks(), run.pairs_in_conflict(),
      sound.data.train->size(), sound.recipe.train.global_batch, workers.count(),
      workers.count() == 1 ? "" : "s");
  const std::int64_t done = run.rounds().scheduler().rounds_done();
  if (done > 0) fmt::print("goes on after round {}\n", done);
  fmt::print("\n");
}

/// Loss and accuracy of the held-out data; a collective.
Result<StradsFigures> figures_of(comm::Communicator& world, const SoundTraining& run) {
  StradsFigures out;
  for (const train::EvalSplit& split : run.data.splits) {
    STORMO_ASSIGN_OR_RETURN(const train::Evaluation result,
                            train::evaluate(world, run.task, split));
    out.emplace_back(split.name + "_loss", result.loss);
    if (result.accuracy) out.emplace_back(split.name + "_accuracy", *result.accuracy);
    if (result.r2) out.emplace_back(split.name + "_r2", *result.r2);
  }
  return out;
}

/// Says why a run has no end; returns the exit code.
int end_with(const Status& failure, comm::Communicator& group, const std::string& last_saved,
             bool launched) {
  const bool saved = failure.code() == Code::kPeerLost && !last_saved.empty();
  const bool is_first = group.rank() == 0;
  // a launcher ends all ranks: this one is leaving, and must have said why
  if (saved || is_first) std::signal(SIGTERM, SIG_IGN);
  if (is_first) say(failure);
  if (saved && is_first && !launched) {
    fmt::print(stderr, "{}\n", how_to_continue(last_saved, kName));
  }
  if (group.size() > 1 && failure.code() != Code::kRefused) group.fail(failure);
  return saved ? kExitSaved : exit_code_of(failure);
}

int train_blocks(comm::Communicator& group, const StradsTrainArguments& a,
                 const SoundTraining& sound, bool launched) {
  std::optional<train::StopSignal> noted;  // without checkpoints signals end the process
  if (!sound.recipe.train.checkpoint.directory.empty()) noted.emplace();
  const Result<std::unique_ptr<train::BlockRun>> begun = begin(group, a, sound);
  if (!begun.ok()) return end_with(begun.status(), group, "", launched);
  train::BlockRun& run = **begun;
  const bool is_first = group.rank() == 0;
  if (is_first && !a.common.json) print_heading(sound, run);
  int signal = 0;
  strads::LoopEvents events{.judged = nullptr, .save = [&](bool last) { return run.save(last); }};
  if (noted) {
    events.stops = [&]() -> Result<bool> {
      STORMO_ASSIGN_OR_RETURN(signal, signal_of_any_rank(group));
      return signal != 0;
    };
  }
  const StradsEnd end{.values_hash = [&]() -> Result<std::uint64_t> {
                        const auto state = train::named_state(*sound.task.module);
                        return std::stoull(train::weights_hash(state), nullptr, 16);
                      },
                      .figures = [&] { return figures_of(group, sound); }};
  const Result<bool> converges =
      run_and_report(run.rounds(), {.rounds = sound.rounds, .every = sound.every},
                     std::move(events), end, a.common.json, is_first);
  if (converges.ok()) return *converges ? kExitOk : kExitFailed;
  if (converges.status().code() != Code::kInterrupted) {
    return end_with(converges.status(), group, run.last_saved(), launched);
  }
  if (is_first) fmt::print(stderr, "{}\n", how_to_continue(run.last_saved(), kName));
  return 128 + signal;
}

std::vector<comm::Fact> facts_of(const StradsTrainArguments& a, const SoundTraining& run) {
  std::vector<comm::Fact> facts = train::recipe_facts(run.recipe);
  facts.push_back({"flags", schedule_text(a, run.every)});
  facts.push_back({"training samples", fmt::format("{}, {:016x}", run.data.train->size(),
                                                   run.data.train->fingerprint())});
  return facts;
}

/// Returns the exit code. What is refused, all ranks refuse.
int run_in(comm::Communicator& group, const StradsTrainArguments& a,
           const train::ParsedRecipe& parsed, bool launched) {
  const Result<SoundTraining> sound =
      check_training(parsed, a, group.size(), !launched && group.rank() == 0);
  const Status agreed = comm::check_agreement(
      group, sound.ok() ? facts_of(a, *sound) : std::vector<comm::Fact>(), sound.status());
  if (!agreed.ok()) return end_with(agreed, group, "", launched);
  if (group.rank() == 0) tell_left_out(parsed);
  for (const std::string& warning : sound->data.warnings) {
    if (group.rank() == 0) fmt::print(stderr, "warning: {}\n", printable(warning));
  }
  return train_blocks(group, a, *sound, launched);
}

}  // namespace

int run_strads_train(const StradsTrainArguments& a) {
  const train::ParsedRecipe parsed = recipe_of(a);
  set_access(parsed.recipe.access);
  try {
    const bool simulates = a.common.virtual_workers.has_value();
    const auto place =
        simulates ? transport::Rendezvous() : find_place("stormo", a.common.launch).take_or_throw();
    if (a.common.dry_run) {  // under a launcher the first rank says what the job would do
      std::vector<std::string> said_by_check;
      if (place.rank != 0) return kExitOk;
      const bool is_rank = place.source != "none";
      return dry_run(a, parsed, is_rank ? place.size : workers_of(a.common, said_by_check));
    }
    if (place.source != "none" || !a.common.launch.wants_launch()) {
      World world = stormo::init(join_world("stormo", place).take_or_throw(),
                                 static_cast<int>(parsed.recipe.threads));
      return run_in(world, a, parsed, place.source == "stormo");
    }
    const Result<SoundTraining> wrong = check_training(parsed, a, std::nullopt, true);
    say(wrong.ok() ? invalid_argument("'stormo' starts ranks; this part of it is one")
                   : wrong.status());
    return kExitUsage;
  } catch (...) {
    const Status failure = train::failure_of_current_exception();
    say(failure);
    return exit_code_of(failure);
  }
}

}  // namespace stormo::cli
