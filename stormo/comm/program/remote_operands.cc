#include <stormo/comm/program/remote_operands.h>

#include <algorithm>

namespace stormo::comm {
namespace {

// Larger blocks cost fewer calls; all of them together must leave room in a core's cache.
constexpr std::size_t kBlockBytes = 128 << 10;
constexpr std::size_t kAllBlocksBytes = 512 << 10;
constexpr std::size_t kLeastBlockBytes = 16 << 10;
constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

/// The first address from `p` on that lies half a page from `other`, in terms of offsets in a page.
/// The kernel copies with `rep movsb`, which Zen 3 executes at a fifth of the speed where the
/// destination lies 1 to 31 bytes after the source.
std::byte* half_a_page_off(std::byte* p, const std::byte* other) {
  const auto offset = [](const std::byte* q) {
    return reinterpret_cast<std::uintptr_t>(q) % kPage;
  };
  return p + (offset(other) + kPage / 2 + kPage - offset(p)) % kPage;
}

}  // namespace

Status RemoteOperands::combine(std::span<const Operand> sources,
                               std::span<void* const> destinations, std::int64_t count,
                               std::size_t width, const Combine& combine) {
  const std::size_t total = static_cast<std::size_t>(count) * width;
  const std::size_t num_blocks = sources_.size() + 1;                      // one for the result
  const std::size_t share = kAllBlocksBytes / num_blocks / kLine * kLine;  // whole elements
  const std::size_t block = std::min(std::max(kLeastBlockBytes, std::min(kBlockBytes, share)),
                                     (total + kLine - 1) / kLine * kLine);
  const std::size_t room = (block + kPage) * num_blocks;
  if (blocks_.size() < room) blocks_.resize(room);
  for (std::size_t offset = 0; offset < total; offset += block) {
    STORMO_RETURN_IF_ERROR(combine_block(sources, destinations, offset,
                                         std::min(block, total - offset), width, combine));
  }
  return {};
}

Status RemoteOperands::combine_block(std::span<const Operand> sources,
                                     std::span<void* const> destinations, std::size_t offset,
                                     std::size_t bytes, std::size_t width, const Combine& combine) {
  near_sources_.assign(sources.begin(), sources.end());
  for (Operand& s : near_sources_) s.data = static_cast<const std::byte*>(s.data) + offset;
  std::byte* block = blocks_.data();
  for (const Far& far : sources_) {
    block = half_a_page_off(block, far.at + offset);
    STORMO_RETURN_IF_ERROR(far.memory->read(block, far.at + offset, bytes));
    near_sources_[far.index].data = block;
    block += bytes;
  }
  near_destinations_.clear();
  for (void* d : destinations) near_destinations_.push_back(static_cast<std::byte*>(d) + offset);
  if (near_destinations_.empty()) {
    near_destinations_.push_back(half_a_page_off(block, destinations_.front().at + offset));
  }
  combine(near_sources_, near_destinations_, static_cast<std::int64_t>(bytes / width));
  for (const Far& far : destinations_) {
    STORMO_RETURN_IF_ERROR(far.memory->write(far.at + offset, near_destinations_[0], bytes));
  }
  return {};
}

}  // namespace stormo::comm
