#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::protocol {

class Policy;

/// Portions of a batch, at most.
inline constexpr int kMaxPortions = 512;

/// Counts of the staleness of gradients. The staleness of a gradient: the number of updates of the
/// shard between the read of the parameters that it was computed from and its own update.
struct Staleness {
  static constexpr std::size_t kBuckets = 64;

  std::uint64_t count = 0;  ///< gradients
  std::uint64_t sum = 0;
  std::uint64_t max = 0;
  /// By staleness; the last one counts all that are larger, too.
  std::array<std::uint64_t, kBuckets> histogram{};

  void add(std::uint64_t staleness);
  void add(const Staleness& other);
  double mean() const {
    return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
  }
  bool operator==(const Staleness&) const = default;
};

/// What a shard knows of one worker.
struct WorkerState {
  std::uint64_t reads = 0;   ///< number of reads
  std::uint64_t pushes = 0;  ///< number of pushes; the clock of the worker, and its next sequence
  std::uint64_t version_read = 0;  ///< version that its last read returned
  std::uint64_t dropped = 0;       ///< pushes whose gradients were not used
  std::uint64_t version_used = 0;  ///< version of the shard when its last used gradient came
  bool active = true;              ///< false: it has left, and nobody waits for it
  Staleness staleness = {};        ///< of its gradients that were used
  bool operator==(const WorkerState&) const = default;
};

/// The state of one server shard: a plain value without data. `version` counts the updates of the
/// shard's parameters.
struct ShardState {
  ShardState() = default;
  explicit ShardState(int count) : workers(static_cast<std::size_t>(count)) {}

  std::uint64_t version = 0;
  std::int64_t pending = 0;   ///< gradients that were added up since the last update
  double pending_weight = 0;  ///< sum of their weights
  double pending_loss = 0;    ///< sum of their losses
  /// Portions whose gradients are among the pending ones, see Push::portion; a bit each.
  std::array<std::uint64_t, kMaxPortions / 64> counted{};
  std::vector<WorkerState> workers;
  bool operator==(const ShardState&) const = default;

  const WorkerState& worker(int w) const { return workers[static_cast<std::size_t>(w)]; }
  WorkerState& worker(int w) { return workers[static_cast<std::size_t>(w)]; }
  bool has_counted(int portion) const {
    return (counted[static_cast<std::size_t>(portion) / 64] >> portion % 64 & 1) != 0;
  }
  int active_workers() const;
  /// The least number of pushes of an active worker; nothing if no worker is active.
  std::optional<std::uint64_t> slowest_clock() const;
  /// Of all workers' gradients.
  Staleness staleness() const;
};

/// A worker asks to give a gradient to a shard.
struct Push {
  int worker = 0;
  /// Number of the worker's push, from 0. A push that is repeated, because its answer was lost, has
  /// the same number and is not used twice.
  std::uint64_t sequence = 0;
  double weight = 1;    ///< of the gradient in an average: its number of samples
  double loss_sum = 0;  ///< of these samples
  /// With the policy portions: of which portion of which batch it is the gradient. Batches are
  /// counted as versions are. -1: of none.
  int portion = -1;
  std::uint64_t batch = 0;
};

/// What a shard does with a push.
enum class PushAction : std::uint8_t {
  kWait,          ///< not yet: the worker has to ask again when the state has changed
  kRepeated,      ///< was taken before: nothing
  kDrop,          ///< counts as a push, but its gradient is not used
  kUpdate,        ///< updates the parameters with this gradient alone
  kAdd,           ///< adds the gradient to the pending ones
  kAddAndUpdate,  ///< as kAdd, then updates the parameters with the average of the pending ones
};

struct PushDecision {
  PushAction action = PushAction::kWait;
  std::uint64_t staleness = 0;
  double gradient_factor = 1;  ///< multiplies the gradient, not its weight in the average
  double rate_factor = 1;      ///< multiplies the learning rate of an update
  bool operator==(const PushDecision&) const = default;
};

// The transitions. Pure functions of state and message: without clock, I/O or data, so that the
// same ones run over shared memory, between hosts, and in virtual time.

/// Whether the worker may read now. If not, it asks again when the state has changed. kPeerLost
/// when the worker has left, or was taken for lost: it has to join() first.
Result<bool> may_read(const Policy& policy, const ShardState& state, int worker);
/// The worker reads the current version.
void note_read(ShardState& state, int worker);

/// kInvalidArgument when earlier pushes of the worker are missing; kPeerLost as may_read(), unless
/// the push was taken before.
Result<PushDecision> decide(const Policy& policy, const ShardState& state, const Push& push);
/// The push was taken as `decision` says, which decide() gave for this state.
void note_push(ShardState& state, const Push& push, const PushDecision& decision);
/// The same of an exchange of elastic averaging. The worker knows what it has made, so the next one
/// is stale by what others do from now on.
void note_exchange(ShardState& state, const Push& push, const PushDecision& decision);

/// The worker leaves. Returns true if the pending gradients now make up an update, because the only
/// ones missing were this worker's; then they must be applied, and note_update() called.
bool leave(const Policy& policy, ShardState& state, int worker);
/// The pending gradients were applied.
void note_update(ShardState& state);
/// A worker comes, or comes back. Nobody waits for what it did not push before.
void join(ShardState& state, int worker);

}  // namespace stormo::protocol
