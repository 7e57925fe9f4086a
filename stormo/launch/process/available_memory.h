#pragma once

#include <cstdint>

namespace stormo::launch {

/// Bytes that new processes of this host can take: what the kernel calls available, at most the
/// limit of this process's control groups. The largest number where neither is known.
std::uint64_t available_memory();

}  // namespace stormo::launch
