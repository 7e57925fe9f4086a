#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include <stormo/transport/memory/arena.h>

namespace stormo::tensor {

/// Blocks of at least this many bytes come from the Arena, smaller ones from the C library.
inline constexpr std::size_t kArenaThresholdBytes = 64u << 10;

/// Makes libtorch allocate large CPU tensors in `arena`, until the process ends. `arena` must never
/// be destroyed, because tensors may outlive all other objects. Call it before the first large
/// tensor that must be in the arena, best before other threads start; existing tensors are not
/// moved. A second call with the same arena does nothing. With another arena, new tensors are
/// allocated there, and blocks are freed in the arena that they came from.
///
/// If the arena is exhausted, blocks come from the C library. So do all blocks of a forked child,
/// which never frees a block of the arena.
void install_arena_allocator(transport::Arena& arena);

/// As install_arena_allocator(), but only while the object lives and for the tensors of this
/// thread: ranks that are threads of one process have an arena each. Other threads use that of the
/// process. From then on freeing any tensor has to check one more arena.
class ThreadArena {
 public:
  explicit ThreadArena(transport::Arena& arena);
  ~ThreadArena();
  ThreadArena(const ThreadArena&) = delete;
  ThreadArena& operator=(const ThreadArena&) = delete;

 private:
  transport::Arena* before_;
};

/// Whether the tensor's storage is in an installed arena.
bool in_arena(const at::Tensor& tensor);

}  // namespace stormo::tensor
