// `stormo strads train`: a rank, or all workers in virtual time.
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <cli/engine.h>
#include <cli/output_path.h>
#include <cli/strads/loop.h>
#include <cli/strads/train.h>
#include <cli/strads/train_check.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/strads/run.h>
#include <stormo/train/agreement/agreement.h>
#include <stormo/train/blocks/block_training.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/failure.h>
#include <stormo/train/run/run_facts.h>
#include <stormo/train/run/stop_signal.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

using train::BlockState;
using train::BlockTraining;

/// The workers of this process: one, or all of them in virtual time.
class Workers {
 public:
  static Result<Workers> make(const StradsTrainArguments& a, const SoundTraining& run,
                              const comm::Communicator& world) {
    Workers out;
    const bool simulated = a.common.virtual_workers.has_value();
    out.count_ = simulated ? *a.common.virtual_workers : world.size();
    const train::TrainerOptions& t = run.recipe.train;
    for (int w = 0; w < (simulated ? out.count_ : 1); ++w) {
      train::Task task = run.task;
      if (w > 0) {
        STORMO_ASSIGN_OR_RETURN(task, train::make_task(run.recipe, run.data.preprocessing));
      }
      out.tasks_.push_back(task);
      STORMO_ASSIGN_OR_RETURN(
          auto program,
          BlockTraining::make(
              std::move(task), *run.data.train,
              {.rate = t.optimizer.lr, .batch = t.global_batch, .units = a.units, .seed = t.seed},
              simulated ? w : world.rank(), out.count_));
      out.programs_.push_back(program.get());
      out.owned_.push_back(std::move(program));
    }
    return out;
  }

  int count() const { return count_; }
  const train::Task& task() const { return tasks_.front(); }
  BlockTraining& first() { return *programs_.front(); }
  std::vector<std::unique_ptr<strads::BlockProgram>> take() { return std::move(owned_); }

  /// All have the values of the first one, and its place in the data.
  void go_on_from(const BlockState& state) {
    const torch::NoGradGuard no_grad;
    const auto values = task().module->parameters();
    for (std::size_t w = 0; w < programs_.size(); ++w) {
      programs_[w]->go_on_from(state.samples);
      const auto own = tasks_[w].module->parameters();
      for (std::size_t p = 0; w > 0 && p < own.size(); ++p) own[p].copy_(values[p]);
    }
  }

  /// A collective.
  Result<protocol::Conflicts> conflicts(comm::Communicator& world, double threshold) {
    std::vector<double> sums, part;
    for (const BlockTraining* program : programs_) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(program->blocks()));
      std::iota(all.begin(), all.end(), 0);
      part.resize(program->part_size(all));
      program->all_gradients(part);
      if (sums.empty()) sums.assign(part.size(), 0);
      for (std::size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
    }
    STORMO_ASSIGN_OR_RETURN(sums, strads::sum_of_parts(world, sums));
    return first().correlated_gradients(sums, threshold);
  }

 private:
  int count_ = 1;
  std::vector<train::Task> tasks_;
  std::vector<BlockTraining*> programs_;
  std::vector<std::unique_ptr<strads::BlockProgram>> owned_;
};

using SharedConflicts = std::shared_ptr<const protocol::Conflicts>;

/// Those of the checkpoint, or of the gradients before the first round; a collective.
Result<SharedConflicts> conflicts_of(const StradsTrainArguments& a, Workers& workers,
                                     const std::optional<BlockState>& state,
                                     comm::Communicator& world) {
  if (!a.schedule.checks()) return SharedConflicts();
  auto conflicts = state ? protocol::Conflicts::of(workers.first().blocks(), state->conflicts)
                         : workers.conflicts(world, a.schedule.threshold);
  if (!conflicts.ok()) return conflicts.status();
  return std::make_shared<const protocol::Conflicts>(std::move(*conflicts));
}

Result<protocol::Scheduler> scheduler_of(const StradsTrainArguments& a, const Workers& workers,
                                         std::int64_t blocks, SharedConflicts conflicts,
                                         const std::optional<BlockState>& state) {
  auto options =
      schedule_options(a.schedule, blocks, workers.count(), a.common.seed, a.schedule.round);
  if (!state) return protocol::Scheduler::make(std::move(options), std::move(conflicts));
  return protocol::Scheduler::make(std::move(options), std::move(conflicts), state->schedule);
}

/// The checkpoints of a run, if it has a folder.
class Saving {
 public:
  Saving(comm::Communicator& world, const StradsTrainArguments& a, const SoundTraining& run)
      : world_(world), every_(run.recipe.train.checkpoint.every) {
    if (run.recipe.train.checkpoint.directory.empty()) return;
    checkpoint_.emplace(world, *run.task.module, checkpoint_options(a, run));
    signals_.emplace();
  }

  /// A collective; see BlockCheckpoint.
  Result<std::optional<BlockState>> begin() {
    if (!checkpoint_) return std::optional<BlockState>();
    STORMO_ASSIGN_OR_RETURN(auto state, checkpoint_->begin());
    if (state) saved_rounds_ = state->schedule.rounds;
    return state;
  }

  /// A collective: saves when it is time.
  Status judged(const strads::RoundsRun& run, const BlockTraining& training,
                const std::vector<protocol::Conflicts::Pair>& conflicts, bool last) {
    const std::int64_t rounds = run.scheduler().rounds_done();
    const bool due = every_ > 0 && rounds >= saved_rounds_ + every_;
    if (!checkpoint_ || !(last || due)) return {};
    STORMO_ASSIGN_OR_RETURN(last_saved_, checkpoint_->save({.schedule = run.scheduler().state(),
                                                            .samples = training.samples(),
                                                            .updates = run.updates(),
                                                            .order_hash = run.order_hash(),
                                                            .conflicts = conflicts}));
    saved_rounds_ = rounds;
    return {};
  }
  /// The newest checkpoint of this process; empty: none.
  const std::string& last_saved() const { return last_saved_; }

  /// Where there is no folder, signals end the process.
  bool notes_signals() const { return signals_.has_value(); }
  /// A collective: whether a rank was told to stop.
  Result<bool> is_told_to_stop() {
    int told = train::StopSignal::received();
    if (told == 0 && train::StopSignal::take_usr1()) told = SIGUSR1;
    std::int64_t mine = told;
    std::vector<std::int64_t> all(static_cast<std::size_t>(world_.size()));
    STORMO_RETURN_IF_ERROR(world_.all_gather({&mine, 1, DType::kInt64}, all));
    signal_ = static_cast<int>(std::ranges::max(all));
    return signal_ != 0;
  }
  /// By which the run was stopped; 0: by none.
  int signal() const { return signal_; }

 private:
  comm::Communicator& world_;
  std::int64_t every_;
  std::optional<train::BlockCheckpoint> checkpoint_;
  std::int64_t saved_rounds_ = 0;
  std::string last_saved_;
  std::optional<train::StopSignal> signals_;
  int signal_ = 0;
};

void print_heading(const StradsTrainArguments& a, const SoundTraining& run, Workers& workers,
                   const protocol::Conflicts* conflicts, std::int64_t first_round) {
  if (a.common.json) return;
  std::int64_t parameters = 0;
  for (const torch::Tensor& p : run.task.module->parameters()) parameters += p.numel();
  fmt::print(
      "{}: {} parameters in {} blocks, {} pairs in conflict; {} samples, {} of them in a "
      "round; {} worker{}\n",
      run.recipe.train.name, parameters, workers.first().blocks(),
      conflicts != nullptr ? conflicts->pairs() : 0, run.data.train->size(),
      run.recipe.train.global_batch, workers.count(), workers.count() == 1 ? "" : "s");
  if (first_round > 0) fmt::print("goes on after round {}\n", first_round);
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

/// False: the updates diverged. A collective.
Result<bool> train_blocks(comm::Communicator& world, const StradsTrainArguments& a,
                          const SoundTraining& sound, Saving& saving) {
  STORMO_ASSIGN_OR_RETURN(Workers workers, Workers::make(a, sound, world));
  STORMO_ASSIGN_OR_RETURN(const std::optional<BlockState> state, saving.begin());
  if (state && state->schedule.rounds > sound.rounds) {
    return invalid_argument(
        fmt::format("--resume: {} rounds are done, and the run has {}; give more --rounds",
                    state->schedule.rounds, sound.rounds));
  }
  if (state) workers.go_on_from(*state);
  BlockTraining& first = workers.first();
  STORMO_ASSIGN_OR_RETURN(const SharedConflicts conflicts, conflicts_of(a, workers, state, world));
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler,
                          scheduler_of(a, workers, first.blocks(), conflicts, state));
  const bool speaks = world.rank() == 0;
  if (speaks) {
    print_heading(a, sound, workers, conflicts.get(), state ? state->schedule.rounds : 0);
  }
  std::vector<std::unique_ptr<strads::BlockProgram>> programs = workers.take();
  std::unique_ptr<strads::RoundsRun> run;
  StradsLoop loop{.rounds = sound.rounds,
                  .every = sound.every,
                  .workers = workers.count(),
                  .speaks = speaks,
                  .json = a.common.json};
  if (a.common.virtual_workers) {
    auto simulated = std::make_unique<strads::VirtualRoundsRun>(
        std::move(programs), std::move(scheduler), virtual_cluster(a.common));
    loop.simulated = simulated.get();
    run = std::move(simulated);
  } else {
    run = std::make_unique<strads::RankRounds>(world, *programs.front(), std::move(scheduler));
  }
  if (state) run->count_from(state->updates, state->order_hash);
  const auto pairs = conflicts ? conflicts->all_pairs() : std::vector<protocol::Conflicts::Pair>();
  loop.judged = [&](bool last) { return saving.judged(*run, first, pairs, last); };
  if (saving.notes_signals()) loop.stops = [&] { return saving.is_told_to_stop(); };
  loop.values_hash = [&]() -> Result<std::uint64_t> {
    return std::stoull(train::weights_hash(train::named_state(*sound.task.module)), nullptr, 16);
  };
  loop.figures = [&] { return figures_of(world, sound); };
  return run_strads_loop(*run, loop);
}

std::vector<train::Fact> facts_of(const StradsTrainArguments& a, const SoundTraining& run) {
  std::vector<train::Fact> facts = train::recipe_facts(run.recipe);
  facts.push_back({"flags", schedule_text(a, run.every)});
  facts.push_back({"training samples", fmt::format("{}, {:016x}", run.data.train->size(),
                                                   run.data.train->fingerprint())});
  return facts;
}

/// What the user can put right is told apart from what went wrong.
int exit_code_of(const Status& status) {
  const Code code = status.code();
  const bool usage = code == Code::kInvalidArgument || code == Code::kNotFound ||
                     code == Code::kRefused || code == Code::kCorrupt;
  return usage ? kExitUsage : kExitFailed;
}

void say(const Status& status) {
  fmt::print(stderr, "stormo strads train: {}\n", message_text(status.message()));
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
    fmt::print(stderr, "{}\n", how_to_continue(last_saved, "strads train"));
  }
  if (group.size() > 1 && failure.code() != Code::kRefused) group.fail(failure);
  return saved ? kExitSaved : exit_code_of(failure);
}

/// Returns the exit code. What is refused, all ranks refuse.
int run_in(World& world, const StradsTrainArguments& a, const train::ParsedRecipe& parsed,
           bool launched) {
  comm::Communicator& group = world.communicator();
  const Result<SoundTraining> sound =
      check_training(parsed, a, group.size(), !launched && group.rank() == 0);
  const Status agreed = train::check_agreement(
      group, sound.ok() ? facts_of(a, *sound) : std::vector<train::Fact>(), sound.status());
  if (!agreed.ok()) return end_with(agreed, group, "", launched);
  for (const std::string& warning : sound->data.warnings) {
    if (group.rank() == 0) fmt::print(stderr, "warning: {}\n", printable(warning));
  }
  Saving saving(group, a, *sound);
  const Result<bool> converges = train_blocks(group, a, *sound, saving);
  if (converges.status().code() == Code::kInterrupted) {
    if (group.rank() == 0) {
      fmt::print(stderr, "{}\n", how_to_continue(saving.last_saved(), "strads train"));
    }
    return 128 + saving.signal();
  }
  if (!converges.ok()) return end_with(converges.status(), group, saving.last_saved(), launched);
  return *converges ? kExitOk : kExitFailed;
}

}  // namespace

int run_strads_train(const StradsTrainArguments& a) {
  const train::ParsedRecipe parsed = recipe_of(a);
  set_access(parsed.recipe.access);
  try {
    const auto place = find_place("stormo", a.common.launch).take_or_throw();
    const bool launched = place.source == "stormo";
    if (launched || place.source != "none" || !a.common.launch.wants_launch()) {
      World world = stormo::init(join_world("stormo", place).take_or_throw(),
                                 static_cast<int>(parsed.recipe.threads));
      return run_in(world, a, parsed, launched);
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
