#pragma once

#include <cstdint>

namespace stormo::launch {

/// Bytes of memory available to new processes of this host: the kernel's estimate, at most the
/// limit of this process's control groups. The largest number if neither is known.
std::uint64_t available_memory();

}  // namespace stormo::launch
