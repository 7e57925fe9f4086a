#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stormo/server/shard/host_shard.h>
#include <stormo/server/shard/shared_shard.h>

namespace stormo::server {

/// A shard with one copy of the weights, which every push changes where they are, without a lock
/// and without a version: Recht, Re, Wright, Niu, "Hogwild!: a lock-free approach to parallelizing
/// stochastic gradient descent", NIPS 2011. A push of rows costs what its rows cost, however large
/// the shard is. In exchange
///
/// - a read gives the live memory: it changes while it is used, and no moment had these values;
/// - two updates of one element at the same time may lose one of the two, but no element is torn;
/// - a worker that is killed may leave half a push.
///
/// Elements are loaded and stored one by one with relaxed atomics, up to 256 of a push at a time.
/// The shard has no other shared write than one counter of pushes, `version`. Nothing blocks. Not
/// thread-safe: one object per worker.
class InPlaceShard final : public HostShard {
 public:
  /// kInvalidArgument unless the policy is async without delay compensation, and the rule leaves
  /// elements without a gradient alone: SGD without momentum or Adagrad, without weight decay.
  static Status check(const ShardOptions& options);

  /// `options` pass check(); `worker`: its number, below options.workers.
  InPlaceShard(std::vector<ShardPiece> pieces, ShardOptions options, int worker);

  std::size_t bytes() const override { return bytes_; }
  void create(std::byte* memory) override;
  void attach(std::byte* memory) override { memory_ = memory; }
  const std::vector<ShardPiece>& pieces() const override { return pieces_; }

  Status set(std::size_t piece, const PieceArrays& values) override;
  /// At once, and all pushes that have ended before are seen; `commit` is the version.
  Result<View> read(Deadline by = Deadline::never()) override;
  Result<View> look() override;
  /// Calls `copy` with the live memory. It is constant only while nobody pushes. Every push counts
  /// as an update of every piece.
  Result<View> save(
      const std::function<void(std::size_t piece, const PieceArrays&)>& copy) override;
  /// Of rows, or dense. kInvalidArgument for rows that do not fit their piece; then nothing has
  /// changed.
  Result<Pushed> push(const PushedGradient& gradient, Deadline by = Deadline::never()) override;
  /// kInvalidArgument: while others push, the shard would not lose what the worker gains.
  Result<Pushed> elastic_average(std::span<void* const> own, double alpha, std::uint64_t sequence,
                                 Deadline by = Deadline::never()) override;
  Result<std::uint64_t> leave(double lr) override;
  Result<Joined> join() override;
  /// Counts of workers that push meanwhile may belong to different moments.
  Result<protocol::ShardState> state() const override;

 private:
  struct alignas(64) Header {
    std::atomic<std::uint64_t> version{0};  // pushes
  };
  /// Counts of one worker, which alone writes them.
  struct alignas(64) Cell {
    std::atomic<std::uint64_t> reads{0}, pushes{0}, version_read{0}, version_used{0};
    std::atomic<bool> active{true};
    std::atomic<std::uint64_t> staleness_sum{0}, staleness_max{0};
    std::array<std::atomic<std::uint64_t>, protocol::Staleness::kBuckets> histogram{};
  };
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  Cell& cell(int worker) const { return reinterpret_cast<Cell*>(memory_ + sizeof(Header))[worker]; }
  std::atomic_ref<std::int64_t> first_updates(std::size_t piece) const;
  PieceArrays arrays(std::size_t piece) const;
  View view(std::uint64_t version) const;
  void update(std::size_t piece, const PushedGradient& gradient, double lr) const;
  void note_push(std::uint64_t version, std::uint64_t staleness);
  protocol::WorkerState worker_state(int worker) const;

  std::vector<ShardPiece> pieces_;
  ShardOptions options_;
  int worker_;
  std::size_t slot_count_;
  std::size_t updates_ = 0;           // byte: numbers of updates that were set, by piece
  std::size_t arrays_ = 0;            // byte: the weights, then each slot
  std::vector<std::size_t> offsets_;  // of pieces in the weights, or one slot
  std::size_t array_bytes_ = 0;       // of the weights, or one slot
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  protocol::ShardState seen_;  // what decides about a push: the version, and this worker
};

}  // namespace stormo::server
