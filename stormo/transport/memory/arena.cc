#include <stormo/transport/memory/arena.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include <stormo/base/check.h>
#include <stormo/transport/memory/address_space.h>

namespace stormo::transport {
namespace {

constexpr std::uint64_t kMinBlock = 64;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kNone = UINT64_MAX;
constexpr std::uint64_t kBackFrom = 256 << 10;  // smaller blocks touch their pages as they need

/// What a block of `bytes` takes: whole pages, or less than one, 64 * 2^k * {1, 1.25, 1.5, 1.75}.
std::uint64_t block_size(std::uint64_t bytes) {
  if (bytes >= kPage) return (bytes + kPage - 1) / kPage * kPage;
  bytes = std::max(bytes, kMinBlock);
  const std::uint64_t low = std::bit_floor(bytes), quarter = low / 4;
  return low + (bytes - low + quarter - 1) / quarter * quarter;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(Options options) {
  const std::uint64_t most = arena_capacity(1);
  const std::uint64_t wanted =
      options.capacity_bytes != 0 ? std::min(options.capacity_bytes, most) : most;
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

Result<Arena*> Arena::of_process(std::uint64_t capacity_bytes) {
  static Arena* made = nullptr;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (made == nullptr || made->owner_pid_ != getpid()) {
    STORMO_ASSIGN_OR_RETURN(auto arena, create({.capacity_bytes = capacity_bytes}));
    made = &immortal(std::move(arena));
  }
  return made;
}

void* Arena::allocate(std::size_t bytes) noexcept {
  if (getpid() != owner_pid_ || bytes > file_.size()) return nullptr;
  const std::uint64_t size = block_size(bytes);
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = next_;
  const std::uint64_t begin = size < kPage ? place_small(size) : place_pages(size);
  if (begin == kNone) return nullptr;
  stats_.touched_bytes = next_;
  // small blocks, too, once it is no small arena: large ones will lie there later
  if (bytes >= kBackFrom || next_ > MemoryFile::kHugePage) {
    back(std::max(begin, before), begin + bytes);
  }
  std::byte* const block = file_.data() + begin;
  size_of_.emplace(block, size);
  stats_.in_use_bytes += size;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.in_use_bytes);
  return block;
}

/// Offset of the block that was freed last, else of new memory; kNone: exhausted.
std::uint64_t Arena::place_small(std::uint64_t bytes) {
  std::vector<std::uint64_t>& free = free_small_[bytes];
  if (!free.empty()) {
    const std::uint64_t begin = free.back();
    free.pop_back();
    return begin;
  }
  const std::uint64_t begin = (next_ + kMinBlock - 1) / kMinBlock * kMinBlock;
  if (begin + bytes > file_.size()) return kNone;
  next_ = begin + bytes;
  return begin;
}

/// As above. The first that suffice, not those that fit best: what lives short stays behind what
/// lives long, and leaves no holes between that.
std::uint64_t Arena::place_pages(std::uint64_t bytes) {
  const auto suffices = [bytes](const auto& free) { return free.second >= bytes; };
  const auto found = std::ranges::find_if(free_pages_, suffices);
  if (found != free_pages_.end()) {
    const auto [begin, length] = *found;
    const auto behind = free_pages_.erase(found);
    if (length > bytes) free_pages_.emplace_hint(behind, begin + bytes, length - bytes);
    return begin;
  }
  const auto last = free_pages_.empty() ? free_pages_.end() : std::prev(free_pages_.end());
  const bool grows = last != free_pages_.end() && last->first + last->second == next_;
  const std::uint64_t begin = grows ? last->first : (next_ + kPage - 1) / kPage * kPage;
  if (begin + bytes > file_.size()) return kNone;
  if (grows) free_pages_.erase(last);
  next_ = begin + bytes;
  return begin;
}

void Arena::free_pages(std::uint64_t begin, std::uint64_t bytes) {
  auto behind = free_pages_.lower_bound(begin);
  if (behind != free_pages_.end() && behind->first == begin + bytes) {
    bytes += behind->second;
    behind = free_pages_.erase(behind);
  }
  if (behind != free_pages_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_pages_.emplace_hint(behind, begin, bytes);
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
  const auto it = size_of_.find(p);
  STORMO_CHECK(it != size_of_.end(), "freed a block that this arena did not hand out");
  if (it->second < kPage) {
    free_small_[it->second].push_back(offset_of(p));
  } else {
    free_pages(offset_of(p), it->second);
  }
  stats_.in_use_bytes -= it->second;
  size_of_.erase(it);
}

Arena::Stats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace stormo::transport
