#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/plan/step_plan.h>
#include <stormo/strads/loop.h>
#include <stormo/train/blocks/block_checkpoint.h>
#include <stormo/train/blocks/block_training.h>
#include <stormo/train/task.h>

namespace stormo::train {

struct BlockRunOptions {
  const TrainerOptions& train;  ///< borrowed; without a folder of checkpoints none are written
  std::int64_t units = 1;       ///< see BlockTrainingOptions
  protocol::ScheduleOptions schedule;  ///< without blocks and rotation
  bool cyclic = false;                 ///< a rotation: schedule.round blocks after the other
  std::optional<double> threshold;     ///< of conflicts; nothing: no check
  strads::LoopOptions loop;            ///< for the plan
  std::optional<protocol::VirtualWorkers> simulated = {};
};

/// How blocks are cut and chosen, as flags of `stormo strads train`: what a run that goes on must
/// have in common with the one that it goes on from (BlockCheckpoint).
std::string schedule_text(const BlockRunOptions& options);

/// The plan of a round of so many workers.
Result<plan::StepPlan> block_plan(const Task& task, const data::Dataset& data,
                                  const BlockRunOptions& options, int workers);

/// Training by blocks, from its beginning or from a checkpoint on.
class BlockRun {
 public:
  /// A collective. `tasks`: of the workers of this process, with equal values: of this rank; of all
  /// workers where they are simulated. Borrows `world` and `data`.
  static Result<std::unique_ptr<BlockRun>> begin(comm::Communicator& world, std::vector<Task> tasks,
                                                 const data::Dataset& data,
                                                 BlockRunOptions options);

  strads::RoundsRun& rounds() { return *rounds_; }
  std::int64_t pairs_in_conflict() const { return conflicts_ ? conflicts_->pairs() : 0; }
  /// A collective, when no round is in flight: saves a checkpoint if it is time, or at the end.
  Status save(bool last);
  /// The newest checkpoint of this process; empty: none.
  const std::string& last_saved() const { return last_saved_; }

 private:
  BlockRun() = default;

  std::int64_t save_every_ = 0;
  std::optional<BlockCheckpoint> checkpoint_;
  std::shared_ptr<const protocol::Conflicts> conflicts_;
  std::optional<strads::RoundsRun> rounds_;
  std::int64_t saved_rounds_ = 0;
  std::string last_saved_;
};

}  // namespace stormo::train
