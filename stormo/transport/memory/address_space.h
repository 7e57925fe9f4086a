#pragma once

#include <cstdint>

namespace stormo::transport {

/// Address space, not memory, for the Arena of one of `ranks` ranks of a host, each of which maps
/// the Arenas of all: twice the memory of the machine. Where the address space is limited (ulimit
/// -v), half of what this process has left, divided among the ranks.
std::uint64_t arena_capacity(int ranks);

}  // namespace stormo::transport
