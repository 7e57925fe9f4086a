#include <stormo/train/blocks/block_run.h>

#include <numeric>
#include <utility>

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

Result<strads::Workers> workers_of(comm::Communicator& world, std::vector<Task> tasks,
                                   const data::Dataset& data, const BlockRunOptions& options) {
  const bool simulated = options.simulated.has_value();
  const int count = simulated ? static_cast<int>(tasks.size()) : world.size();
  std::vector<std::unique_ptr<strads::BlockProgram>> here;
  for (Task& task : tasks) {
    const int worker = simulated ? static_cast<int>(here.size()) : world.rank();
    STORMO_ASSIGN_OR_RETURN(
        auto program, BlockTraining::make(std::move(task), data, options.training, worker, count));
    here.push_back(std::move(program));
  }
  if (simulated) return strads::Workers(std::move(here));
  return strads::Workers(world, std::move(here.front()));
}

}  // namespace

Result<std::unique_ptr<BlockRun>> BlockRun::begin(comm::Communicator& world,
                                                  std::vector<Task> tasks,
                                                  const data::Dataset& data,
                                                  BlockRunOptions options) {
  std::unique_ptr<BlockRun> run(new BlockRun);
  run->save_every_ = options.save_every;
  torch::nn::Module& module = *tasks.front().module;
  STORMO_ASSIGN_OR_RETURN(strads::Workers workers,
                          workers_of(world, std::move(tasks), data, options));
  std::optional<BlockState> state;
  if (!options.checkpoint.directory.empty()) {
    run->checkpoint_.emplace(world, module, std::move(options.checkpoint));
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
  auto schedule = options.schedule(workers.first().blocks());
  auto scheduler =
      state ? protocol::Scheduler::make(std::move(schedule), run->conflicts_, state->schedule)
            : protocol::Scheduler::make(std::move(schedule), run->conflicts_);
  if (!scheduler.ok()) return scheduler.status();
  run->rounds_.emplace(std::move(workers), std::move(*scheduler), std::move(options.simulated));
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
