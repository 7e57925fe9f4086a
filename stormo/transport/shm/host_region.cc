#include <stormo/transport/shm/host_region.h>

#include <fmt/format.h>

namespace stormo::transport {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kRingStride = kPage + HostRegion::kRingBytes;
static_assert(sizeof(RingHeader) <= kPage);

}  // namespace

std::size_t HostRegion::boards_offset(int ranks) {
  return (static_cast<std::size_t>(ranks) * kCellStride + kPage - 1) / kPage * kPage;
}

std::size_t HostRegion::rings_offset(int ranks) {
  return boards_offset(ranks) + static_cast<std::size_t>(ranks) * 2 * kBoardBytes;
}

// Fresh pages are zeros, and all-zero bytes are the initial state of every atomic in here.
HostRegion::HostRegion(std::shared_ptr<MemoryFile> file, int ranks)
    : file_(std::move(file)), ranks_(ranks), boards_(file_->data() + boards_offset(ranks)) {}

std::uint64_t HostRegion::size_for(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return rings_offset(ranks) + n * n * kRingStride;
}

Status HostRegion::check_ranks(int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks) return {};
  return invalid_argument(
      fmt::format("{} ranks on one host; a host has 1 to {}", ranks, kMaxRanks));
}

Result<HostRegion> HostRegion::create(int ranks) {
  STORMO_RETURN_IF_ERROR(check_ranks(ranks));
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::create("stormo-host", size_for(ranks)));
  return HostRegion(std::make_shared<MemoryFile>(std::move(file)), ranks);
}

Result<HostRegion> HostRegion::map(Descriptor fd, int ranks) {
  STORMO_ASSIGN_OR_RETURN(auto file, MemoryFile::map_shared(std::move(fd), size_for(ranks)));
  return HostRegion(std::move(file), ranks);
}

Result<HostRegion> HostRegion::anonymous(int ranks) {
  STORMO_RETURN_IF_ERROR(check_ranks(ranks));
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::anonymous(size_for(ranks)));
  return HostRegion(std::make_shared<MemoryFile>(std::move(file)), ranks);
}

std::size_t HostRegion::ring_offset(int from, int to) const {
  const auto index = static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
                     static_cast<std::size_t>(to);
  return rings_offset(ranks_) + index * kRingStride;
}

RingHeader& HostRegion::ring_header(int from, int to) const {
  return *reinterpret_cast<RingHeader*>(file_->data() + ring_offset(from, to));
}

std::byte* HostRegion::ring_bytes(int from, int to) const {
  return file_->data() + ring_offset(from, to) + kPage;
}

}  // namespace stormo::transport
