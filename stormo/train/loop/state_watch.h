#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/protocol/rolling_check.h>
#include <stormo/train/agreement/replica_healing.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/loop/run_model.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/state_blocks.h>

namespace stormo::train {

/// By rank, the number of the part of parameters and optimizer state that it holds after each step:
/// those with equal numbers hold the same bits. Empty: no two do. `ranks`: which ranks of the mesh
/// there are; nothing: all, in its order.
std::vector<int> parts_of_state(const plan::StepPlan& plan,
                                const std::optional<MeshRanks>& ranks = {});

/// A job that goes on without a rank which is wrong again and again.
struct WatchedJob {
  protocol::FaultyRanks* faulty = nullptr;  ///< what was seen before this run, too; borrowed
  std::function<std::string(Rank)> name = {};
  std::function<void(Rank)> leave_out = {};  ///< this rank has a fault that stays
};

/// Finds wrong bits: compares what ranks hold alike, a slice in each step, as part of what they
/// agree on anyway. What differs from the majority gets its bits. Covered are parameters, also
/// frozen ones, and the optimizer's state; not buffers, which differ by design.
class StateWatch {
 public:
  /// Null where it is off, or nothing can be compared. `run` and `model` are borrowed. The same on
  /// all ranks. Not a collective.
  static std::unique_ptr<StateWatch> create(RunContext& run, RunModel& model, WatchedJob job = {});

  /// By rank, those that have not got the whole state yet: they are not compared. Equal on all
  /// ranks. At first there are none.
  void leave_out(std::vector<bool> incomplete);
  /// After the update of a step: this rank's numbers, to be added up over all ranks. `everything`:
  /// not only a slice. Not a collective.
  std::vector<double> look(bool everything);
  /// With the sums. If they tell of a difference it is a collective, which finds and mends it, and
  /// warns. kMismatch on all ranks, with the newest good checkpoint, where that is not possible, or
  /// for the third time within 1,000 steps because of the same rank, unless the job goes on without
  /// it. `step`: that one.
  Status judge(std::span<const double> sums, std::int64_t step);
  /// Both, of everything; for a state that is about to be saved. A collective.
  Status check_all(std::int64_t step);

 private:
  StateWatch(RunContext& run, FusedOptimizer& optimizer, std::vector<int> part_of, WatchedJob job);
  bool is_incomplete(Rank rank) const;
  Status note_faulty(const std::vector<WrongReplica>& wrong, std::int64_t step);
  void take_blocks();
  std::vector<TensorPiece> pieces() const;
  Status mend(std::int64_t step);
  Status end_run(const std::string& why);

  RunContext& run_;
  FusedOptimizer& optimizer_;
  std::vector<int> part_of_;      // by rank
  std::vector<bool> incomplete_;  // by rank; empty: none is
  protocol::RollingCheck rolling_;
  protocol::FaultyRanks faulty_;  // of this run
  const WatchedJob job_;
  torch::Tensor counts_;  // of updates, by parameter: a copy
  std::optional<StateBlocks> blocks_;
  std::uint64_t look_ = 0;  // the hash of what was looked at last
  bool everything_ = false;
  std::optional<TimePoint> last_look_;  // its end
};

}  // namespace stormo::train
