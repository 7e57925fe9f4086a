#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/group/copy_or_fetch.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/execute.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// Makes the buffers of an operation accessible to all ranks of the host: posts the addresses of
/// this rank's buffers and finds those of the others. A private buffer that other ranks access gets
/// a copy in the Arena if it is small, cannot be reached by system calls, or if copying is faster.
/// Where an operation can be cut, a large buffer is copied piece by piece: a piece stays in a
/// cache. One operation at a time.
class MemoryMap {
 public:
  /// Bytes of a piece.
  static constexpr std::size_t kPiece = 1 << 20;
  /// What is measured of an operation.
  struct Measured {
    CopyOrFetch* trial = nullptr;  ///< where either way may be the faster
    Duration posting{0};
    TimePoint met;
    bool copies_next = false;
  };

  explicit MemoryMap(transport::HostGroup& host) : host_(host) {}
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;

  /// Before the barrier of the host's ranks: fills operands.memory[local rank] and the room after
  /// the posting. `operands` must have its partition and layout. For operations in place, and for
  /// those with parts; `size`: number of ranks of the group.
  /// `can_be_cut`: a buffer may be reduced piece by piece.
  Status post_in_place(const Request& request, Rank me, const Program& program, bool can_be_cut,
                       Operands& operands);
  Status post_parts(const Request& request, Rank me, int size, const Program& program,
                    Operands& operands);
  /// After the barrier: whether a rank of this host wants it to be done in pieces. Then the pieces
  /// are operations like others, between these two calls.
  bool is_in_pieces() const;
  Measured begin_pieces();
  void end_pieces(const Measured& whole, const Request& request);
  /// Else, after the barrier: fills operands.memory of the other ranks. kMismatch: a rank sends
  /// more or less to this one than it expects.
  Status find_others(const Request& request, Operands& operands);
  /// Whether copy_back() has something to do: there are private buffers.
  bool has_private() const { return has_private_; }
  /// At the end: copies results from copies in the Arena to the user's buffers.
  void copy_back(const Request& request, Rank me, const Program& program, const Operands& operands);

 private:
  /// Memory in the Arena that grows and is kept from operation to operation.
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  Status reserve(Block& block, std::size_t bytes);
  void decide_copies(const Request& request, bool can_be_cut);
  void meet();
  void judge_copies(const Request& request);
  /// The time, if it is being measured; else zero.
  TimePoint now() const {
    return measured_.trial == nullptr ? TimePoint{} : std::chrono::steady_clock::now();
  }
  bool is_private(const Buffer& buffer) const { return !host_.arena().contains(buffer.data); }
  /// Whether peers must use a copy of the buffer.
  bool needs_copy(const Buffer& buffer) const;
  Status check_blocks(const Request& request, const Operands& operands) const;
  void post_blocks(const Request& request, Operands& operands, Rank me, int size) const;

  transport::HostGroup& host_;
  bool has_private_ = false;
  std::size_t direct_from_ = 0;  // private buffers of so many bytes are not copied, this time
  Measured measured_;            // of the operation under way
  std::map<std::pair<OperationKind, int>, CopyOrFetch> trials_;  // by bytes, as a power of two
  Block in_;       // copies of private inputs, or of private buffers of an operation in place
  Block out_;      // stands in for a private output
  Block scratch_;  // what only passes through
  // where peers find each output, or buffer in place; this rank finds its unshared chunks in the
  // user's buffers
  std::vector<std::byte*> mine_;
};

}  // namespace stormo::comm
