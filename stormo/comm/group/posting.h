#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <stormo/base/ids.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// The short form of a posting, on the cache line of the arrival flag. Fingerprints are compared
/// here; the smallest payloads ride along.
struct Note {
  static constexpr std::size_t kMaxPayloadBytes = 16;
  Tag fingerprint = 0;
  std::array<std::byte, kMaxPayloadBytes> payload{};
};
static_assert(sizeof(Note) == transport::HostRegion::kNoteBytes);

/// What a rank writes on its board about the operation it called: the operation itself, and either
/// the data (small payloads: one meeting is enough) or where its buffers lie in its Arena.
struct Posting {
  /// What local rank 0 proposes for private buffers next time (CopyOrFetch).
  enum class NextTime : std::uint8_t { kNoProposal, kCopy, kFetch };
  double weight = 1;
  OperationWords operation{};
  NextTime next_time = NextTime::kNoProposal;

  static constexpr std::size_t kRoom = transport::HostRegion::kBoardBytes - 64;
  /// Payloads up to this size are posted whole. That spares a second meeting, which where ranks
  /// share cores costs more than a copy, or than every rank's reducing all by itself; else more
  /// than reading so much from one peer, or a quarter of it from each of several.
  static constexpr std::size_t max_inline_bytes(int ranks, bool crowded, bool reduces) {
    if (crowded) return reduces ? 8 << 10 : 32 << 10;
    return ranks <= 2 ? 4096 : 1024;
  }
  static constexpr std::size_t kMaxBuffers = kRoom / sizeof(std::uint64_t);
};
static_assert(sizeof(Posting) <= 64);
static_assert(Posting::max_inline_bytes(2, /*crowded=*/true, /*reduces=*/false) <= Posting::kRoom);

/// What rank `local` of this host has posted about the current operation; the caller's own is
/// there to be written.
class Posted {
 public:
  Posted(const transport::HostGroup& host, int local)
      : note_(host.note(local).data()), board_(host.board(local).data()) {}

  Note& note() const { return *reinterpret_cast<Note*>(note_); }
  Posting& posting() const { return *reinterpret_cast<Posting*>(board_); }
  /// Room behind the posting: payload or offsets.
  std::byte* room() const { return board_ + 64; }
  /// Where an inline payload of that many bytes lies.
  std::byte* payload(std::uint64_t bytes) const {
    return bytes <= Note::kMaxPayloadBytes ? note().payload.data() : room();
  }

 private:
  std::byte* note_;
  std::byte* board_;
};

}  // namespace stormo::comm
