#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/piece_arrays.h>
#include <stormo/server/shard_layout.h>

namespace stormo::server {

/// Rows of a gradient of one piece; all others are zero. The piece is a matrix [rows, row_length]
/// in C order. Borrowed.
struct GradientRows {
  std::span<const std::int64_t> indices;  ///< of rows, from 0; no index twice
  std::int64_t row_length = 0;            ///< elements; 0: the piece has no gradient in this form
  const void* values = nullptr;           ///< [indices.size(), row_length], type of the piece
};

/// The gradient of one piece: an array, or rows, or none. Borrowed.
struct PushedPiece {
  const void* array = nullptr;  ///< first element, in the type of the piece
  GradientRows rows = {};       ///< if there is no array
  bool is_sent = false;         ///< begin_part() has sent the array
};

/// A gradient for one shard.
struct PushedGradient {
  std::span<const PushedPiece> pieces;  ///< by piece; empty: no piece has a gradient
  double lr = 0;
  double gradient_scale = 1;   ///< multiplies the gradient: clipping
  double weight = 1;           ///< in an average: the number of samples
  double loss_sum = 0;         ///< see protocol::Push
  std::uint64_t sequence = 0;  ///< see protocol::Push
  int portion = -1;            ///< same
  std::uint64_t batch = 0;     ///< same

  PushedPiece piece(std::size_t i) const { return pieces.empty() ? PushedPiece() : pieces[i]; }
};

/// A server shard, as one worker uses it: parameters, their optimizer state, and the state machine
/// that decides about reads and pushes. Where it lies, the implementation decides. Not thread-safe.
class Shard {
 public:
  virtual ~Shard() = default;

  virtual const std::vector<ShardPiece>& pieces() const = 0;
  /// Whether it lies behind a connection, so that calls that are begun early take less time.
  virtual bool is_remote() const { return false; }

  /// Sets what of `values` is not null, and the number of updates. Before the first read of any
  /// worker, by one worker.
  virtual Status set(std::size_t piece, const PieceArrays& values) = 0;

  /// One version of the parameters: valid until the worker's next read or look, and constant, but
  /// for an InPlaceShard.
  struct View {
    std::uint64_t version = 0;
    std::uint64_t commit = 0;  ///< number of the last change of the shard before the read
    std::vector<const std::byte*> pieces;  ///< first elements
  };
  /// Say that the next call is read(), or push() of this gradient. What lies behind a connection
  /// sends the request now, so that calls to several shards overlap: begin all, then call all.
  /// Between begin_read() and read(), the view of the read before stays valid. The gradient is
  /// borrowed until push(), join() or leave() returns, so call all that was begun, also when one
  /// fails. Other shards have nothing to do.
  virtual void begin_read(Deadline /*by*/ = Deadline::never()) {}
  virtual void begin_push(const PushedGradient& /*gradient*/, Deadline /*by*/ = Deadline::never()) {
  }
  /// Sends a part of the gradient of the next push: these pieces, none of them null. They must not
  /// change until the push returns, or a later begin_part() or the push itself sends them again.
  /// Does nothing unless is_remote().
  virtual void begin_part(const PushedGradient& /*gradient*/,
                          std::span<const std::size_t> /*pieces*/) {}
  /// Of a read that was begun: blocks until the piece has arrived, and returns its first element.
  /// Then call read(), too. kInvalidArgument unless is_remote().
  virtual Result<const std::byte*> arrival(std::size_t /*piece*/) {
    return invalid_argument("this shard is read at once");
  }

  /// Reads the current version, when the policy permits. Blocks until then, at most until `by`.
  /// kPeerLost when the worker has left or was taken for lost: then join() makes it a member again.
  /// kPeerLost also when the server is lost; then join() fails, too.
  virtual Result<View> read(Deadline by = Deadline::never()) = 0;
  /// As read(), whatever the policy says, and uncounted: for evaluation and saving.
  virtual Result<View> look() = 0;
  /// As look(), and calls `copy` with the arrays of each piece of this version. The optimizer's
  /// state stays what it is during the call only. Others may push meanwhile; a coordinator must not
  /// run programs, which change its vectors.
  virtual Result<View> save(
      const std::function<void(std::size_t piece, const PieceArrays&)>& copy) = 0;

  struct Pushed {
    protocol::PushDecision decision;
    std::uint64_t commit = 0;  ///< number of this change of the shard
  };
  /// Gives a gradient. Blocks until it is taken, at most until `by`. kPeerLost as read(). kCorrupt
  /// when the policy's invariant does not hold.
  virtual Result<Pushed> push(const PushedGradient& gradient, Deadline by = Deadline::never()) = 0;

  /// One exchange of elastic averaging (Zhang et al., NIPS 2015), atomic for the shard: with x the
  /// worker's values, c those of the shard and d = alpha (x - c), x becomes x - d and c becomes
  /// c + d. `own`: by piece the first element of x, in the type of the piece, none null. They
  /// change only if c does. `sequence` counts exchanges as pushes: one that was made before changes
  /// nothing. For a shard with policy async. Blocks until it is made, at most until `by`.
  /// kInvalidArgument with another policy.
  virtual Result<Pushed> elastic_average(std::span<void* const> own, double alpha,
                                         std::uint64_t sequence,
                                         Deadline by = Deadline::never()) = 0;

  /// The worker leaves: nobody waits for it any more. `lr`: of an update that this completes.
  /// Returns the number of this change of the shard.
  virtual Result<std::uint64_t> leave(double lr) = 0;
  struct Joined {
    std::uint64_t sequence = 0;  ///< of the worker's next push
    std::uint64_t commit = 0;    ///< number of this change of the shard
  };
  /// The worker comes back.
  virtual Result<Joined> join() = 0;

  virtual Result<protocol::ShardState> state() const = 0;
};

}  // namespace stormo::server
