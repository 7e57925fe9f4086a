#pragma once

#include <cstddef>
#include <cstdint>

#include <stormo/base/ids.h>
#include <stormo/comm/operation.h>
#include <stormo/transport/shm/host_region.h>

namespace stormo::comm {

/// What a rank writes on its board about the operation it called: the operation itself, and either
/// the data (small payloads: one meeting is enough) or where its buffers lie in its Arena.
struct Posting {
  Tag fingerprint = 0;
  double weight = 1;
  Operation operation;

  static constexpr std::size_t kRoom = transport::HostRegion::kBoardBytes - 64;
  static constexpr std::size_t kMaxInlineBytes = 4096;
  static constexpr std::size_t kMaxBuffers = kRoom / sizeof(std::uint64_t);
};
static_assert(sizeof(Posting) <= 64);

/// Room behind a posting: payload or offsets.
inline std::byte* room(std::span<std::byte, transport::HostRegion::kBoardBytes> board) {
  return board.data() + 64;
}

}  // namespace stormo::comm
