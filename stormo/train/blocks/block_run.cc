#include <stormo/train/blocks/block_run.h>

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include <stormo/strads/round_plan.h>

namespace stormo::train {
namespace {

BlockTraining& training_of(strads::BlockProgram& program) {
  return dynamic_cast<BlockTraining&>(program);
}

/// Those of the checkpoint, or of the gradients before the first round; a collective.
Result<protocol::Conflicts> conflicts_of(const strads::Workers& workers, double threshold,
                                         const std::optional<BlockState>& state) {
  const BlockTraining& first = training_of(workers.first());
  if (state) return protocol::Conflicts::of(first.blocks(), state->conflicts);
  std::vector<std::int64_t> all(static_cast<std::size_t>(first.blocks()));
  std::iota(all.begin(), all.end(), 0);
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      workers.sum(first.part_size(all), [](strads::BlockProgram& program, std::span<double> part) {
        training_of(program).all_gradients(part);
      }));
  return first.correlated_gradients(sums, threshold);
}

BlockTrainingOptions training_options(const BlockRunOptions& options) {
  return {.rate = options.train.optimizer.lr,
          .batch = options.train.global_batch,
          .units = options.units,
          .seed = options.train.seed};
}

protocol::ScheduleOptions schedule_of(const BlockRunOptions& options, std::int64_t blocks) {
  protocol::ScheduleOptions schedule = options.schedule;
  schedule.blocks = blocks;
  if (options.cyclic && schedule.round >= 1) {  // Scheduler::make() refuses another one
    schedule.rotation = protocol::all_in_turn(blocks, schedule.round);
  }
  return schedule;
}

}  // namespace

std::string schedule_text(const BlockRunOptions& options) {
  const protocol::ScheduleOptions& o = options.schedule;
  std::string text = fmt::format("--round {} --units {}", o.round, options.units);
  if (options.cyclic) return text + " --cyclic";
  text += fmt::format(" --seed {}", o.seed);
  text += options.threshold ? fmt::format(" --threshold {}", *options.threshold) : " --no-check";
  text += o.priority ? fmt::format(" --base-weight {}", o.base_weight) : " --no-priority";
  // no round is in flight at a judgement, so it then depends on these, too
  if (o.depth > 0) text += fmt::format(" --depth {} --every {}", o.depth, options.loop.every);
  return text;
}

Result<plan::StepPlan> block_plan(const Task& task, const data::Dataset& data,
                                  const BlockRunOptions& options, int workers) {
  STORMO_ASSIGN_OR_RETURN(const auto worker,
                          BlockTraining::make(task, data, training_options(options), 0, workers));
  return strads::round_plan(worker->variables(), workers, schedule_of(options, worker->blocks()),
                            options.loop);
}

Result<std::unique_ptr<BlockRun>> BlockRun::begin(comm::Communicator& world,
                                                  std::vector<Task> tasks,
                                                  const data::Dataset& data,
                                                  BlockRunOptions options) {
  std::unique_ptr<BlockRun> run(new BlockRun);
  run->save_every_ = options.train.checkpoint.every;
  torch::nn::Module& module = *tasks.front().module;
  std::optional<int> simulated;
  if (options.simulated) simulated = static_cast<int>(tasks.size());
  const auto make = [&](int worker, int count) {
    Task& task = tasks[simulated ? static_cast<std::size_t>(worker) : 0];
    return BlockTraining::make(std::move(task), data, training_options(options), worker, count);
  };
  STORMO_ASSIGN_OR_RETURN(auto workers, strads::Workers::make(world, simulated, make));
  std::optional<BlockState> state;
  if (!options.train.checkpoint.directory.empty()) {
    run->checkpoint_.emplace(world, module, options.train, schedule_text(options));
    STORMO_ASSIGN_OR_RETURN(state, run->checkpoint_->begin());
  }
  for (const auto& program : workers.here()) {
    if (!state) break;
    training_of(*program).go_on_from(state->samples);
    if (program.get() != &workers.first()) {
      training_of(*program).copy_values(training_of(workers.first()));
    }
  }
  if (options.threshold) {
    STORMO_ASSIGN_OR_RETURN(auto conflicts, conflicts_of(workers, *options.threshold, state));
    run->conflicts_ = std::make_shared<const protocol::Conflicts>(std::move(conflicts));
  }
  const protocol::ScheduleOptions schedule = schedule_of(options, workers.first().blocks());
  STORMO_ASSIGN_OR_RETURN(
      auto rounds,
      strads::begin_rounds(std::move(workers), schedule, run->conflicts_, options.loop,
                           std::move(options.simulated), state ? &state->schedule : nullptr));
  run->rounds_.emplace(std::move(rounds));
  if (state) run->rounds_->count_from(state->updates, state->order_hash);
  if (state) run->saved_rounds_ = state->schedule.rounds;
  return run;
}

Status BlockRun::save(bool last) {
  const protocol::Scheduler& scheduler = rounds_->scheduler();
  const std::int64_t done = scheduler.rounds_done();
  const bool due = save_every_ > 0 && done >= saved_rounds_ + save_every_;
  if (!checkpoint_ || !(last || due)) return {};
  using Pairs = std::vector<protocol::Conflicts::Pair>;
  STORMO_ASSIGN_OR_RETURN(
      last_saved_,
      checkpoint_->save({.schedule = scheduler.state(),
                         .samples = training_of(rounds_->workers().first()).samples(),
                         .updates = rounds_->updates(),
                         .order_hash = rounds_->order_hash(),
                         .conflicts = conflicts_ ? conflicts_->all_pairs() : Pairs()}));
  saved_rounds_ = done;
  return {};
}

}  // namespace stormo::train
