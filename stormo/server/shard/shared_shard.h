#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/optim/options.h>
#include <stormo/optim/vector_program.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/shard/host_shard.h>
#include <stormo/server/shard/shard_memory.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::server {

/// What a shard is, equal in all processes that map it.
struct ShardOptions {
  int workers = 1;           ///< at most ShardMemory::kMaxWorkers
  optim::Options optimizer;  ///< passes check_norms()
  std::shared_ptr<const protocol::Policy> policy;
};

/// How one process waits.
struct ShardWait {
  transport::WaitPolicy policy;
  /// Asked when a worker's call begins, and every `patience` while it waits: a failure ends it. May
  /// be empty.
  std::function<Status()> status = {};
  /// A writer that makes no progress for so long loses its lease: it was stopped, or is dead.
  Duration patience = std::chrono::milliseconds(300);
};

/// A shard with versions: parameters, optimizer state, and the state machine that decides about
/// reads and pushes. A worker that pushes writes the next version into a copy that nobody uses, and
/// makes it current with one store (docs/adr/0009-shards-in-shared-memory.md). So
///
/// - a read copies nothing: the worker uses the current version in place, and keeps it (pins it)
///   until its next read;
/// - a worker that dies or is stopped at any moment leaves no half-made update, and others go on;
/// - at most one push is made at a time; its duration is that of a pass over the shard. A push of
///   rows that is an update by itself writes what has changed since the copy was current, and the
///   rows, where optim::leaves_rest_alone(). Compare InPlaceShard.
///
/// Not thread-safe.
class SharedShard : public HostShard {
 public:
  /// `worker`: its number, below options.workers; or options.workers for a server process, and
  /// options.workers + 1 for a coordinator, which neither read nor push.
  SharedShard(std::vector<ShardPiece> pieces, ShardOptions options, int worker, ShardWait wait);

  std::size_t bytes() const override { return memory_.bytes(); }
  const std::vector<ShardPiece>& pieces() const override { return memory_.pieces(); }
  /// Number of the optimizer's arrays.
  std::size_t slots() const { return memory_.slots(); }
  /// Whether it has a mean square of gradients, see protocol::DelayCompensation.
  bool has_mean_square() const { return memory_.has_mean_square(); }
  /// Number of the coordinator's vectors.
  std::size_t vectors() const { return memory_.vectors(); }
  void create(std::byte* memory) override;
  void attach(std::byte* memory) override { memory_.attach(memory); }
  /// The same, of a memory file that it keeps.
  void attach(transport::MemoryFile file) {
    file_ = std::move(file);
    memory_.attach(file_->data());
  }

  /// The current arrays of a piece, to compare. Only while nobody pushes.
  PieceArrays values(std::size_t piece) const;

  Status set(std::size_t piece, const PieceArrays& values) override;
  Result<View> read(Deadline by = Deadline::never()) override;
  Result<View> look() override;
  Result<View> save(
      const std::function<void(std::size_t piece, const PieceArrays&)>& copy) override;
  Result<Pushed> push(const PushedGradient& gradient, Deadline by = Deadline::never()) override;
  /// Needs memory for the worker's new values, as large as the shard, until this object ends.
  Result<Pushed> elastic_average(std::span<void* const> own, double alpha, std::uint64_t sequence,
                                 Deadline by = Deadline::never()) override;
  Result<std::uint64_t> leave(double lr) override;
  Result<Joined> join() override;
  Result<protocol::ShardState> state() const override;

  /// Elements of weights that may be other in the last view than they were at `version`.
  std::vector<ChangedRange> changed_since(std::uint64_t version) const {
    return memory_.changes().since(version);
  }
  /// Blocks until read() would not wait for other workers, at most until `by`.
  Status wait_to_read(Deadline by) const;
  /// The same for a push with this sequence.
  Status wait_to_push(std::uint64_t sequence, Deadline by) const;

  /// By another process, in the name of a worker that is lost. An update that this completes has
  /// the learning rate of the last push. Blocks as push(), at most until `by`.
  Result<std::uint64_t> evict(int worker, Deadline by = Deadline::never());
  /// Frees the copies that a worker used whose process has ended. Only then: a process that was
  /// stopped goes on with them.
  void release_copies(int worker);
  protocol::ShardState current_state() const { return memory_.state(); }

  /// By a coordinator, see optim::VectorSpace: the gradient is the average of the pending ones. New
  /// weights are a new version, if any are pending. kInvalidArgument for vectors that the shard
  /// does not have.
  Result<std::vector<double>> run(const optim::VectorProgram& program);

 private:
  using Lease = ShardMemory::Lease;
  Status status() const { return wait_.status ? wait_.status() : Status(); }
  View pin();
  /// The worker leaves, or another one in its name.
  Result<std::uint64_t> remove(int worker, double lr, Deadline by);
  View view_of(const Commit& commit) const;
  Status wait_for_change(std::uint32_t seen, Deadline by) const;
  /// Not kWait.
  Result<protocol::PushDecision> wait_for_decision(const protocol::Push& push, Deadline by) const;
  /// `patience`: see ShardWait.
  Result<Lease> acquire(Deadline by, Duration patience);
  /// Not to write: the copies of `from` stay what they are until release(), while others write.
  Result<Lease> use_current_copies();
  /// Tells others that this writer is at work.
  Progress progress() const;
  /// The pending gradients of the next version: those before, and this one.
  void add_to_sums(Lease& lease, const PushedGradient& gradient,
                   const protocol::PushDecision& decision);
  /// A new sum of a piece: what `lease.from` has, if it counts, and scale * gradient. At least in
  /// these ranges.
  void write_sum(const Lease& lease, const PushedGradient& gradient, std::size_t piece,
                 std::span<const ChangedRange> ranges, bool has_before, double scale);
  void update_all(Lease& lease, const PushedGradient& gradient,
                  const protocol::PushDecision& decision);
  /// Where the policy replaces(): the average of the pending values and this push becomes the next
  /// version.
  void replace_all(Lease& lease, const PushedGradient& values);
  // see shard_vectors.cc
  Result<std::vector<double>> run_step(const optim::VectorStep& step);
  Result<double> take_gradient(const optim::VectorStep& step);
  Status set_weights(const optim::VectorStep& step);
  const std::byte* vector(const View& weights, optim::VectorId id, std::size_t piece) const;
  void combine(const View& weights, const optim::VectorStep& step, std::size_t piece,
               std::byte* to) const;
  /// Writes the next version, and the worker's new values to moved_.
  void move_all(Lease& lease, std::span<void* const> own, double alpha);

  ShardOptions options_;
  int worker_;
  ShardWait wait_;
  transport::Health healthy_;  // waits end by ShardWait::status
  ShardMemory memory_;
  std::optional<transport::MemoryFile> file_;
  std::vector<std::byte> moved_;  // by piece, one after the other
};

}  // namespace stormo::server
