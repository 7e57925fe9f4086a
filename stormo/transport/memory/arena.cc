#include <stormo/transport/memory/arena.h>

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include <stormo/base/check.h>

namespace stormo::transport {
namespace {

constexpr std::uint64_t kMinBlock = 64;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBackFrom = 256 << 10;  // smaller blocks touch their pages as they need

struct SizeClass {
  std::uint32_t index;
  std::uint64_t bytes;
};

/// Smallest class that holds `bytes`: 64 * 2^k * {1, 1.25, 1.5, 1.75}, so at most a fifth is lost.
SizeClass class_for(std::uint64_t bytes) {
  bytes = std::max(bytes, kMinBlock);
  const int power = static_cast<int>(std::bit_width(bytes)) - 1;  // 2^power <= bytes
  const std::uint64_t low = std::uint64_t{1} << power;
  const std::uint64_t quarter = low / 4;
  const std::uint64_t steps = (bytes - low + quarter - 1) / quarter;  // 0..4
  const auto index =
      static_cast<std::uint32_t>((power - 6) * 4) + static_cast<std::uint32_t>(steps);
  return {index, low + steps * quarter};
}

std::uint64_t bytes_of_class(std::uint32_t index) {
  const std::uint64_t low = kMinBlock << (index / 4);
  return low + index % 4 * (low / 4);
}

std::uint64_t default_capacity() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return std::uint64_t{64} << 30;
  return std::bit_ceil(std::uint64_t{info.totalram} * info.mem_unit) * 2;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(Options options) {
  const std::uint64_t wanted =
      options.capacity_bytes != 0 ? options.capacity_bytes : default_capacity();
  const std::uint64_t capacity = (wanted + kPage - 1) / kPage * kPage;
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, options.single_process
                                               ? MemoryFile::anonymous(capacity)
                                               : MemoryFile::create("stormo-arena", capacity));
  std::unique_ptr<Arena> arena(new Arena);
  arena->file_ = std::move(file);
  arena->owner_pid_ = getpid();
  arena->stats_.capacity_bytes = capacity;
  return arena;
}

Arena& Arena::immortal(std::unique_ptr<Arena> arena) {
  // never destroyed, but reachable: no leak in the eyes of leak checkers
  static auto* const kept = new std::vector<std::unique_ptr<Arena>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(arena));
  return *kept->back();
}

void* Arena::allocate(std::size_t bytes) noexcept {
  if (getpid() != owner_pid_ || bytes > file_.size()) return nullptr;
  const SizeClass c = class_for(bytes);
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (!free_[c.index].empty()) {
    block = free_[c.index].back();
    free_[c.index].pop_back();
  } else {
    const std::uint64_t alignment = c.bytes >= kPage ? kPage : kMinBlock;
    const std::uint64_t begin = (next_ + alignment - 1) / alignment * alignment;
    if (begin + c.bytes > file_.size()) return nullptr;
    next_ = begin + c.bytes;
    stats_.touched_bytes = next_;
    block = file_.data() + begin;
    if (bytes >= kBackFrom) back(begin, begin + bytes);
  }
  class_of_.emplace(block, c.index);
  stats_.in_use_bytes += c.bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.in_use_bytes);
  return block;
}

/// [begin, end) was never handed out before.
void Arena::back(std::uint64_t begin, std::uint64_t end) noexcept {
  begin = std::max(begin, backed_);
  if (begin >= end) return;
  static_cast<void>(file_.back_with_huge_pages(begin, end));  // else pages come with faults
  backed_ = (end + MemoryFile::kHugePage - 1) / MemoryFile::kHugePage * MemoryFile::kHugePage;
}

void Arena::deallocate(void* p) noexcept {
  if (p == nullptr || getpid() != owner_pid_) return;
  const std::lock_guard lock(mutex_);
  const auto it = class_of_.find(p);
  STORMO_CHECK(it != class_of_.end(), "freed a block that this arena did not hand out");
  free_[it->second].push_back(static_cast<std::byte*>(p));
  stats_.in_use_bytes -= bytes_of_class(it->second);
  class_of_.erase(it);
}

Arena::Stats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace stormo::transport
