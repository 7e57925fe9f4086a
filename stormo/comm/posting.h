#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <stormo/base/ids.h>
#include <stormo/comm/operation.h>
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
  double weight = 1;
  Operation operation;

  static constexpr std::size_t kRoom = transport::HostRegion::kBoardBytes - 64;
  /// Payloads up to this size are posted whole: with a core for each rank, and where ranks share
  /// cores, so that a second meeting costs more than the copies.
  static constexpr std::size_t kMaxInlineBytes = 1024;
  static constexpr std::size_t kMaxInlineBytesCrowded = kRoom;
  static constexpr std::size_t kMaxBuffers = kRoom / sizeof(std::uint64_t);
};
static_assert(sizeof(Posting) <= 64);

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
