#pragma once

#include <cstdint>

namespace stormo {

/// Position of a process (or thread) in its group, 0 .. size-1.
using Rank = int;
/// Generation of a group; every frame carries it, so that a zombie of an older one is refused.
using Epoch = std::uint32_t;
/// What a message belongs to. Collectives use the fingerprint of the operation, send/recv the
/// user's tag.
using Tag = std::uint64_t;

}  // namespace stormo
