#include <stormo/transport/shm/host_region.h>

namespace stormo::transport {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCellStride =
    (sizeof(Cell) + 127) / 128 * 128;  // no pair prefetch across cells
constexpr std::size_t kRingStride = kPage + HostRegion::kRingBytes;
static_assert(sizeof(RingHeader) <= kPage);

std::size_t boards_offset(int ranks) {
  return (static_cast<std::size_t>(ranks) * kCellStride + kPage - 1) / kPage * kPage;
}

std::size_t rings_offset(int ranks) {
  return boards_offset(ranks) + static_cast<std::size_t>(ranks) * 2 * HostRegion::kBoardBytes;
}

}  // namespace

std::uint64_t HostRegion::size_for(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return rings_offset(ranks) + n * n * kRingStride;
}

Result<HostRegion> HostRegion::create(int ranks) {
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::create("stormo-host", size_for(ranks)));
  return HostRegion(std::move(file), ranks);
}

Result<HostRegion> HostRegion::map(int fd, int ranks) {
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::map(fd, size_for(ranks)));
  return HostRegion(std::move(file), ranks);
}

Result<HostRegion> HostRegion::anonymous(int ranks) {
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::anonymous(size_for(ranks)));
  return HostRegion(std::move(file), ranks);
}

// Fresh pages are zeros, and all-zero bytes are the initial state of every atomic in here.
Cell& HostRegion::cell(int rank) const {
  return *reinterpret_cast<Cell*>(file_.data() + static_cast<std::size_t>(rank) * kCellStride);
}

std::span<std::byte, HostRegion::kBoardBytes> HostRegion::board(int rank, unsigned parity) const {
  std::byte* p = file_.data() + boards_offset(ranks_) +
                 (static_cast<std::size_t>(rank) * 2 + parity % 2) * kBoardBytes;
  return std::span<std::byte, kBoardBytes>(p, kBoardBytes);
}

std::span<std::byte, HostRegion::kNoteBytes> HostRegion::note(int rank, unsigned parity) const {
  std::byte* p = cell(rank).arrived.beside.data() + parity % 2 * kNoteBytes;
  return std::span<std::byte, kNoteBytes>(p, kNoteBytes);
}

std::atomic<std::int32_t>& HostRegion::core(int rank) const {
  static_assert(2 * kNoteBytes + sizeof(std::atomic<std::int32_t>) <= Flag::kBesideBytes);
  std::byte* p = cell(rank).arrived.beside.data() + 2 * kNoteBytes;
  return *reinterpret_cast<std::atomic<std::int32_t>*>(p);
}

std::size_t HostRegion::ring_offset(int from, int to) const {
  const auto index = static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
                     static_cast<std::size_t>(to);
  return rings_offset(ranks_) + index * kRingStride;
}

RingHeader& HostRegion::ring_header(int from, int to) const {
  return *reinterpret_cast<RingHeader*>(file_.data() + ring_offset(from, to));
}

std::byte* HostRegion::ring_bytes(int from, int to) const {
  return file_.data() + ring_offset(from, to) + kPage;
}

}  // namespace stormo::transport
