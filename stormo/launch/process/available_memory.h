#pragma once

#include <cstdint>

namespace stormo::launch {

/// Bytes of memory available to new processes of this host: the kernel's estimate, at most what
/// the limit of this process's control groups leaves beside own_memory(). The largest number if
/// neither is known.
std::uint64_t available_memory();

/// Bytes of memory of this process that are neither of files nor shared memory. 0: unknown.
std::uint64_t own_memory();

}  // namespace stormo::launch
