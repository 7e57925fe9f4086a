#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/optim/options.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/shard_layout.h>
#include <stormo/server/shard_memory.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::server {

/// What a shard is, equal in all processes that map it.
struct ShardOptions {
  int workers = 1;           ///< at most ShardMemory::kMaxWorkers
  optim::Options optimizer;  ///< no rule that needs norms of whole parameters
  std::shared_ptr<const protocol::Policy> policy;
};

/// How one process waits.
struct ShardWait {
  transport::WaitPolicy policy;
  /// Asked every `patience`: a failure ends the wait. May be empty.
  std::function<Status()> status = {};
  /// A writer that makes no progress for so long loses its lease: it was stopped, or is dead.
  Duration patience = std::chrono::milliseconds(300);
};

/// A gradient for one shard.
struct PushedGradient {
  /// By piece: its first element, in the type of the piece; null: there is none.
  std::span<const void* const> pieces;
  double lr = 0;
  double gradient_scale = 1;   ///< multiplies the gradient: clipping
  double weight = 1;           ///< in an average: the number of samples
  std::uint64_t sequence = 0;  ///< see protocol::Push
};

/// A server shard in memory that all workers of a host map: parameters, optimizer state, and the
/// state machine that decides about reads and pushes. There is no server process. A worker that
/// pushes does the work of the server itself: it writes the next version into a copy that nobody
/// uses, and makes it current with one store (docs/adr/0009-shards-in-shared-memory.md). So
///
/// - a read copies nothing: the worker uses the current version in place, and keeps it (pins it)
///   until its next read;
/// - a worker that dies or is stopped at any moment leaves no half-made update, and others go on;
/// - at most one push is made at a time; its duration is that of a pass over the shard.
///
/// One object per process and worker; the memory is shared. Not thread-safe.
class SharedShard {
 public:
  SharedShard(std::vector<ShardPiece> pieces, ShardOptions options, ShardWait wait);

  /// Bytes of the memory; pages that are never touched are not used.
  std::size_t bytes() const { return memory_.bytes(); }
  const std::vector<ShardPiece>& pieces() const { return memory_.pieces(); }

  /// Makes the shard in `memory` (bytes() long, aligned to 4096, borrowed), with all values 0; then
  /// others may attach to it. `values()` are set before the first read.
  void create(std::byte* memory);
  void attach(std::byte* memory) { memory_.attach(memory); }

  /// The current arrays of a piece: to set first values, and to compare. Only while nobody pushes.
  PieceArrays values(std::size_t piece) const;
  void set_updates(std::size_t piece, std::int64_t updates);

  /// A version of the shard in place: constant, and valid until the worker's next read.
  struct View {
    std::uint64_t version = 0;
    std::uint64_t commit = 0;  ///< number of the last change of the shard before the read
    std::vector<const std::byte*> pieces;  ///< first elements
  };
  /// Reads the current version, when the policy permits. Blocks until then, at most until `by`.
  Result<View> read(int worker, Deadline by = Deadline::never());
  /// As read(), whatever the policy says, and uncounted: for evaluation and saving.
  View look(int worker);
  /// As look(), and calls `copy` with the arrays of each piece of this version. The optimizer's
  /// state stays what it is during the call only. Others may push meanwhile.
  Result<View> save(int worker,
                    const std::function<void(std::size_t piece, const PieceArrays&)>& copy);
  struct Pushed {
    protocol::PushDecision decision;
    std::uint64_t commit = 0;  ///< number of this change of the shard
  };
  /// Gives a gradient. Blocks until it is taken, at most until `by`. kCorrupt when the policy's
  /// invariant does not hold.
  Result<Pushed> push(int worker, const PushedGradient& gradient, Deadline by = Deadline::never());

  /// The worker leaves: nobody waits for it any more. `lr`: of an update that this completes.
  /// `dead`: its process has ended, another one calls this, and the copies that it used are free.
  /// Returns the number of this change of the shard.
  Result<std::uint64_t> leave(int worker, double lr, bool dead = false);
  struct Joined {
    std::uint64_t sequence = 0;  ///< of the worker's next push
    std::uint64_t commit = 0;    ///< number of this change of the shard
  };
  /// The worker comes back.
  Result<Joined> join(int worker);

  protocol::ShardState state() const;

 private:
  struct Lease {
    std::uint64_t word = 0;
    Commit from, to;
    protocol::ShardState state;
  };
  View pin(int worker);
  View view_of(const Commit& commit) const;
  Status wait_for_change(std::uint32_t seen, Deadline by) const;
  Result<Lease> acquire(int worker, Deadline by);
  bool choose_copies(int worker, Lease& lease);
  /// Makes `lease.to` current. False if the lease was lost; then nothing has changed.
  bool commit(int worker, Lease& lease);
  void release(int worker, const Lease& lease);
  void drop(const Lease& lease);  // as release(), but the copies stay in use
  /// Writes the arrays of the next version as `decision` says.
  void write(const Lease& lease, const PushedGradient& gradient, int worker,
             const protocol::PushDecision& decision);
  void write_sums(const Lease& lease, const PushedGradient& gradient, double scale);
  void update_all(const Lease& lease, const PushedGradient& gradient, int worker,
                  const protocol::PushDecision& decision);

  ShardOptions options_;
  ShardWait wait_;
  transport::Health healthy_;  // waits end by ShardWait::status
  ShardMemory memory_;
};

}  // namespace stormo::server
