#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/base/status.h>
#include <stormo/protocol/strads/block_weights.h>
#include <stormo/protocol/strads/conflicts.h>

namespace stormo::protocol {

// Scheduled model parallelism. The variables of a model are in blocks. A round is: schedule (which
// blocks are updated together), update (every worker computes its part of the new values),
// aggregate (the parts are added up, and the new values are set everywhere). Lee, Kim, Zheng, Ho,
// Gibson, Xing, "On model parallelization and scheduling strategies for distributed machine
// learning", NIPS 2014; Kim et al., "STRADS: a distributed framework for scheduled model parallel
// machine learning", EuroSys 2016.
//
// A state machine without clock, I/O and data. Rounds begin and end in order, whenever parts of
// workers arrive, so a run in virtual time and one with processes have the same order of updates.

/// Largest base weight, and largest change that counts: a run that diverges has changes near the
/// largest number, and the sum of all weights must stay below it.
inline constexpr double kMostBlockWeight = 1e100;

struct ScheduleOptions {
  std::int64_t blocks = 0;
  int round = 32;  ///< blocks of a round, at most
  /// Rounds that may be in flight besides the oldest one. A round is then computed from values
  /// without the last `depth` rounds.
  int depth = 0;
  /// Draws by priority: a block weighs its last change, as an absolute value, and this besides.
  /// Until its first update it weighs 1. Without priority all blocks weigh 1.
  bool priority = true;
  double base_weight = 1e-4;
  std::uint64_t seed = 1;
  /// Static rotation, for dependencies that are regular: round r has the blocks of list r modulo
  /// their number. Then nothing is drawn: `round`, `priority`, `base_weight` and `seed` have no
  /// effect, and `depth` must be 0. All options are checked nevertheless.
  std::vector<std::vector<std::int64_t>> rotation = {};
};

/// A rotation of all blocks: rounds of `size` of them, at least 1, in their order; the last may
/// have fewer.
std::vector<std::vector<std::int64_t>> all_in_turn(std::int64_t blocks, std::int64_t size);

/// What a scheduler with no round in flight goes on from, beside its options and conflicts.
struct ScheduleState {
  std::int64_t rounds = 0;      ///< done
  std::int64_t draws = 0;       ///< random numbers that were used for them
  std::vector<double> weights;  ///< by block
  bool operator==(const ScheduleState&) const = default;
};

/// The state: a value.
class Scheduler {
 public:
  /// kInvalidArgument for numbers out of range, and for lists of a rotation with a block that does
  /// not exist or stands there twice; all that is wrong is in the message. `conflicts`: of the same
  /// blocks; null: nothing is checked.
  static Result<Scheduler> make(ScheduleOptions options,
                                std::shared_ptr<const Conflicts> conflicts = nullptr);
  /// The same, but goes on from `state`, whose numbers are checked too. Cost: its draws.
  static Result<Scheduler> make(ScheduleOptions options, std::shared_ptr<const Conflicts> conflicts,
                                const ScheduleState& state);

  /// Whether a round may begin before another one ends.
  bool may_begin() const { return std::ssize(in_flight_) <= options_.depth; }
  /// Begins a round: chooses its blocks. Its parts are computed from the values after the rounds
  /// that have ended. Call it when may_begin(). Cost: draws of log2(blocks) steps, at most
  /// 2 * min(`round`, `blocks`), and a look at the conflicts of each.
  const std::vector<std::int64_t>& begin();
  /// Ends the oldest round in flight: how much each of its blocks changes. kInvalidArgument, and no
  /// change, when no round is in flight, or it has another number of blocks.
  Status end(std::span<const double> changes);

  /// Blocks of rounds that have begun and not ended, oldest first.
  const std::deque<std::vector<std::int64_t>>& in_flight() const { return in_flight_; }
  std::int64_t rounds_begun() const { return done_ + std::ssize(in_flight_); }
  std::int64_t rounds_done() const { return done_; }
  /// Call it when no round is in flight.
  ScheduleState state() const;
  /// 0 while the block, which was drawn, is in flight.
  double weight(std::int64_t block) const { return weights_[block]; }
  const ScheduleOptions& options() const { return options_; }

 private:
  Scheduler(ScheduleOptions options, std::shared_ptr<const Conflicts> conflicts);
  std::vector<std::int64_t> draw();
  bool is_free(std::int64_t block) const;
  void give_back(std::span<const std::int64_t> blocks, std::span<const double> changes);

  ScheduleOptions options_;
  std::shared_ptr<const Conflicts> conflicts_;
  BlockWeights weights_;
  std::vector<bool> busy_;  // by block: was drawn, and is in flight
  Rng rng_;
  std::int64_t draws_ = 0;  // of rng_
  std::deque<std::vector<std::int64_t>> in_flight_;
  std::int64_t done_ = 0;  // rounds
};

}  // namespace stormo::protocol
