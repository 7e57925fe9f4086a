#pragma once

#include <cstdint>

#include <stormo/base/status.h>

namespace stormo::transport {

/// Address space, not memory, for the Arena of one of `ranks` ranks of a host, each of which maps
/// the Arenas of all: twice the memory of the machine. Where the address space is limited (ulimit
/// -v), half of what this process has left, divided among the ranks. No more than a file may have
/// (ulimit -f), since it is one.
std::uint64_t arena_capacity(int ranks);

/// Memory that ranks of a host share is in files. kInvalidArgument where these may not have 1 GiB.
Status check_file_limit();

}  // namespace stormo::transport
