#pragma once

#include <cstdint>

namespace stormo {

/// Position of a process (or thread) in its group, 0 .. size-1.
using Rank = int;
/// Number of a group that a job forms. Every frame contains it, so that processes of an older group
/// are refused.
using Epoch = std::uint32_t;
/// Identifies the operation of a message. Collectives use the fingerprint of the operation,
/// send/recv the user's tag.
using Tag = std::uint64_t;

}  // namespace stormo
