#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include <stormo/transport/memory/arena.h>

namespace stormo::tensor {

/// Blocks of at least this many bytes come from the Arena, smaller ones from the C library.
inline constexpr std::size_t kArenaThresholdBytes = 64u << 10;

/// Makes `arena` the place where libtorch puts its large CPU tensors, for the rest of the process.
/// `arena` must never be destroyed: tensors outlive everything. Call it before the first large
/// tensor whose place matters, best before other threads start; tensors that exist already stay
/// where they are. A second call with the same arena does nothing; with another one, that one
/// serves new tensors, and the blocks of both are freed where they came from.
///
/// An exhausted arena is no failure: the block comes from the C library. So do all blocks of a
/// forked child, which never frees a block of the arena.
void install_arena_allocator(transport::Arena& arena);

/// As install_arena_allocator(), but while it lives, and for the tensors that this thread makes:
/// ranks that are threads of one process have an arena each. Threads without one use the process's.
/// From then on the release of any tensor looks at one more arena.
class ThreadArena {
 public:
  explicit ThreadArena(transport::Arena& arena);
  ~ThreadArena();
  ThreadArena(const ThreadArena&) = delete;
  ThreadArena& operator=(const ThreadArena&) = delete;

 private:
  transport::Arena* before_;
};

/// Whether the tensor's storage lies in an installed arena.
bool in_arena(const at::Tensor& tensor);

}  // namespace stormo::tensor
