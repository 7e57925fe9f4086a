#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include <stormo/transport/arena.h>

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

/// Whether the tensor's storage lies in an installed arena.
bool in_arena(const at::Tensor& tensor);

}  // namespace stormo::tensor
