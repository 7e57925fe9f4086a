#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <stormo/base/ids.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// The part of a posting on the cache line of the arrival flag: the fingerprint, which ranks
/// compare, and the data if they have at most 16 bytes.
struct Note {
  static constexpr std::size_t kMaxPayloadBytes = 16;
  Tag fingerprint = 0;
  std::array<std::byte, kMaxPayloadBytes> payload{};
};
static_assert(sizeof(Note) == transport::HostRegion::kNoteBytes);

/// What a rank writes on its board about the operation that it called: the operation itself, and
/// after it either the data, if they are small (one barrier is then enough), or the addresses of
/// its buffers relative to its Arena.
struct Posting {
  /// What local rank 0 proposes for private buffers in the next operation (CopyOrFetch).
  enum class NextTime : std::uint8_t { kNoProposal, kCopy, kFetch };
  double weight = 1;
  OperationWords operation{};
  NextTime next_time = NextTime::kNoProposal;
  bool in_pieces = false;  ///< this rank copies a large private buffer piece by piece

  static constexpr std::size_t kRoom = transport::HostRegion::kBoardBytes - 64;
  /// Data up to this size are posted as a whole, which saves a second barrier. Where ranks share
  /// cores, a barrier takes longer than a copy of this size, or than reducing everything on every
  /// rank. Elsewhere it takes longer than reading this much from one peer, or a quarter of it from
  /// each of several.
  static constexpr std::size_t max_inline_bytes(int ranks, bool crowded, bool reduces) {
    if (crowded) return reduces ? 8 << 10 : 32 << 10;
    return ranks <= 2 ? 4096 : 1024;
  }
  static constexpr std::size_t kMaxBuffers = kRoom / sizeof(std::uint64_t);
};
static_assert(sizeof(Posting) <= 64);
static_assert(Posting::max_inline_bytes(2, /*crowded=*/true, /*reduces=*/false) <= Posting::kRoom);

/// The posting of rank `local` of this host about the current operation. A rank writes only its
/// own.
class Posted {
 public:
  Posted(const transport::HostGroup& host, int local)
      : note_(host.note(local).data()), board_(host.board(local).data()) {}

  Note& note() const { return *reinterpret_cast<Note*>(note_); }
  Posting& posting() const { return *reinterpret_cast<Posting*>(board_); }
  /// Room after the posting: data or addresses.
  std::byte* room() const { return board_ + 64; }
  /// Address of posted data of that many bytes.
  std::byte* payload(std::uint64_t bytes) const {
    return bytes <= Note::kMaxPayloadBytes ? note().payload.data() : room();
  }

 private:
  std::byte* note_;
  std::byte* board_;
};

}  // namespace stormo::comm
