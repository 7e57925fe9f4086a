#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/optim/options.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/shard/change_stamps.h>
#include <stormo/server/shard/shard_update.h>
#include <stormo/server/shard_layout.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::server {

/// The number of a copy of a shard's arrays in each pool, and of the state that belongs to them:
/// together one version of the shard. One word, so that a single store makes a version current.
struct Commit {
  std::uint64_t count = 0;  ///< of all commits, modulo 2^40
  unsigned weights = 0;     ///< number of the copy of the weights
  unsigned slots = 0;       ///< of the optimizer's state
  unsigned sums = 0;        ///< of the sums of pending gradients
  unsigned state = 0;       ///< of the ShardState

  static Commit unpack(std::uint64_t word);
  std::uint64_t pack() const;
};

/// The memory of a shard that workers of a host map, and where things lie in it. No locks: the word
/// `commit` names the current version, other versions are written in copies that nobody uses.
///
/// There are enough copies for every worker, a server process and a coordinator to keep one of the
/// weights (its pin), the current one, and one for each of kWriters writers. Copies that were never
/// used need no memory, since pages are touched when they are first written.
class ShardMemory {
 public:
  /// Writers at a time: one that has the lease, and others that lost theirs while they were
  /// stopped.
  static constexpr unsigned kWriters = 3;
  static constexpr int kMaxWorkers = 512;

  struct alignas(64) Header {
    std::atomic<std::uint64_t> commit{0};
    /// Who writes: 0, or worker + 1 in the upper 16 bits and the number of the lease below.
    std::atomic<std::uint64_t> lease{0};
    std::atomic<std::uint64_t> progress{0};  ///< blocks of memory that were written
    std::atomic<double> lr{0};               ///< of the last push
    transport::Flag bell;                    ///< rings after every change
  };
  /// What one worker tells the others. Written by this worker only. After the cells of the workers
  /// come that of a server process and that of a coordinator.
  struct alignas(64) Cell {
    std::atomic<std::uint64_t> reads{0};
    std::atomic<std::uint64_t> version_read{0};
    std::atomic<std::uint32_t> pin{0};     ///< number of the weights that it uses, plus 1
    std::atomic<std::uint64_t> writes{0};  ///< copies that it writes: Commit::pack() with count 1
  };

  /// Of the one writer that the others let write.
  struct Lease {
    std::uint64_t word = 0;
    Commit from;  ///< the version that is current
    Commit free;  ///< copies that nobody uses
    Commit to;    ///< the next version: who writes a free copy names it here, others stay
    protocol::ShardState state;
  };
  /// The word of a lease has its owner in the upper 16 bits, and its number below.
  static constexpr unsigned kOwnerShift = 48;
  static constexpr std::uint64_t kLeaseNumber = (std::uint64_t{1} << kOwnerShift) - 1;

  /// `mean_square`: of gradients, beside the slots of the optimizer.
  ShardMemory(std::vector<ShardPiece> pieces, int workers, const optim::Options& options,
              bool mean_square);

  std::size_t bytes() const { return bytes_; }
  /// `memory` has bytes() bytes, aligned to 4096, and stays borrowed.
  void attach(std::byte* memory) {
    memory_ = memory;
    changes_.attach(memory + changes_at_);
  }
  /// Makes the state of an attached memory that nobody else uses yet. Weights and slots are zero.
  void initialise();

  Header& header() const { return *at<Header>(0); }
  Cell& cell(int worker) const { return at<Cell>(cells_)[worker]; }
  int workers() const { return workers_; }
  int cells() const { return workers_ + 2; }
  const std::vector<ShardPiece>& pieces() const { return pieces_; }
  std::size_t slots() const { return slot_count_; }
  bool has_mean_square() const { return has_mean_square_; }

  /// Of weights that are current, or were when they were pinned.
  std::atomic<std::uint64_t>& version_of(unsigned weights) const;
  /// The weights of a piece in a copy. Unlike the rest of a version, a pin protects them.
  std::byte* weights(unsigned number, std::size_t piece) const;
  /// Arrays of a piece in one version. The number of updates is read from there, too.
  PieceArrays arrays(const Commit& which, std::size_t piece) const;
  void set_updates(unsigned slots, std::size_t piece, std::int64_t updates) const;
  std::byte* sum(unsigned sums, std::size_t piece) const;
  /// Whether a copy of the sums has one for the piece.
  bool& has_sum(unsigned sums, std::size_t piece) const;
  /// Number of the vectors of a coordinator; they are not versions. See optim::VectorSpace.
  std::size_t vectors() const { return vector_count_; }
  /// `vector`: from 1.
  std::byte* vector(std::size_t vector, std::size_t piece) const;

  /// Of the weights. Noted before the version is current.
  const ChangeStamps& changes() const { return changes_; }

  /// The state of the current version, with what the cells say of reads. `current`: gets the
  /// version.
  protocol::ShardState state(Commit* current = nullptr) const;
  /// To call before the first byte of copies of weights and slots is written. The version that both
  /// hold, but for what changes() has later; nothing if that is not known.
  std::optional<std::uint64_t> start_writing(const Commit& copies) const;
  /// Makes `lease.to` with its state the current version, with the next number, and releases the
  /// lease. False if it was lost; then nothing has changed.
  bool commit(int worker, Lease& lease) const;
  /// Others may write. `holds_copies`: the copies that the worker announces stay in use.
  void release(int worker, const Lease& lease, bool holds_copies = false) const;
  /// Copies that are neither current, nor pinned, nor written by another worker. False if there are
  /// none.
  bool find_free(int worker, const Commit& current, Commit& free) const;

 private:
  struct Pool {
    std::size_t first = 0;   ///< byte
    std::size_t stride = 0;  ///< bytes of a copy
    unsigned copies = 0;
  };
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  std::byte* copy(const Pool& pool, unsigned number) const {
    return memory_ + pool.first + pool.stride * number;
  }
  Pool add_pool(std::size_t bytes, unsigned copies);
  void write_state(unsigned number, const protocol::ShardState& state) const;
  // what copies hold is known from commit() until start_writing(): the version, but for what
  // changes() has later than that
  std::atomic<std::uint64_t>& weights_held(unsigned number) const;
  std::atomic<std::uint64_t>& slots_held(unsigned number) const;

  std::vector<ShardPiece> pieces_;
  ChangeStamps changes_;
  std::vector<std::size_t> offsets_;  // of pieces in a copy of weights, sums, or one slot
  std::size_t array_bytes_ = 0;       // of all pieces
  int workers_;
  std::size_t slot_count_;
  bool has_mean_square_;
  std::size_t vector_count_;
  std::size_t cells_ = 0, versions_ = 0, held_ = 0, changes_at_ = 0;  // bytes
  Pool weights_, slots_, sums_, states_, vectors_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace stormo::server
