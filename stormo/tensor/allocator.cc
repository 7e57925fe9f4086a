#include <stormo/tensor/allocator.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace stormo::tensor {
namespace {

constexpr std::size_t kAlignment = 64;  // as libtorch's own allocator: its kernels rely on it
constexpr std::uint8_t kPriority = 100;

/// The arenas known so far, newest first. Nodes are never freed, so that readers need no lock:
/// tensors are released from any thread, even while static objects are destroyed.
struct Installed {
  transport::Arena* arena;
  const Installed* older;
};
std::atomic<const Installed*> newest{nullptr};

// Where large tensors go.
std::atomic<transport::Arena*> arena_of_process{nullptr};
thread_local transport::Arena* arena_of_thread = nullptr;

transport::Arena* arena_holding(const void* p) {
  for (const Installed* i = newest.load(std::memory_order_acquire); i; i = i->older) {
    if (i->arena->contains(p)) return i->arena;
  }
  return nullptr;
}

void release(void* p) {
  if (p == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(p);
  if (transport::Arena* arena = arena_holding(p)) {
    arena->deallocate(p);  // does nothing in a forked child
  } else {
    std::free(p);
  }
}

void* obtain(std::size_t bytes) {
  if (bytes >= kArenaThresholdBytes) {
    transport::Arena* arena = arena_of_thread;
    if (arena == nullptr) arena = arena_of_process.load(std::memory_order_acquire);
    if (arena != nullptr) {
      if (void* p = arena->allocate(bytes)) return p;
    }
  }
  void* p = nullptr;
  return posix_memalign(&p, kAlignment, bytes) == 0 ? p : nullptr;
}

/// Freed arena blocks are not poisoned under ASan: they are reused at once, and a peer may
/// still read one that its owner has just given back, which is what the barriers of a step order.
class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* p = nullptr;
    if (bytes > 0) {
      p = obtain(bytes);
      if (p == nullptr) {
        c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
        TORCH_CHECK_WITH(OutOfMemoryError, false, "not enough memory: ", bytes,
                         " bytes for a CPU tensor; use a smaller batch or model");
      }
      c10::profiledCPUMemoryReporter().New(p, bytes);
    }
    // Context and data are the same pointer: raw_deleter() promises it, and a storage that resizes
    // or hands its memory over relies on it.
    return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

/// From here on libtorch gives tensors back through release().
void make_known(transport::Arena& arena) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const Installed* first = newest.load(std::memory_order_relaxed);
  for (const Installed* i = first; i; i = i->older) {
    if (i->arena == &arena) return;
  }
  newest.store(new Installed{&arena, first}, std::memory_order_release);
  if (first == nullptr) {
    c10::SetCPUAllocator(new ArenaAllocator, kPriority);  // never freed: static tensors need it
  }
}

}  // namespace

void install_arena_allocator(transport::Arena& arena) {
  make_known(arena);
  arena_of_process.store(&arena, std::memory_order_release);
}

ThreadArena::ThreadArena(transport::Arena& arena) : before_(arena_of_thread) {
  make_known(arena);
  arena_of_thread = &arena;
}

ThreadArena::~ThreadArena() { arena_of_thread = before_; }

bool in_arena(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         arena_holding(tensor.storage().data()) != nullptr;
}

}  // namespace stormo::tensor
