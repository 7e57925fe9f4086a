#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace stormo::launch {

/// A rank of this host.
struct SiblingRank {
  int rank = 0;
  pid_t process = 0;
  char letter = 0;                 ///< see ProcessState
  std::uint64_t memory_bytes = 0;  ///< in memory now, with what it shares with other ranks
};

/// The ranks that the launcher of this process has started on this host, this process among them,
/// in the order of their ranks: children of the same parent in whose environment there is the
/// variable by which it says the rank. `source`: that of Rendezvous; where it is no launcher, this
/// process alone as rank 0. Ranks that have ended are left out.
std::vector<SiblingRank> sibling_ranks(std::string_view source);

/// The value of a variable in an environment whose entries a 0 ends, as in /proc/12/environ; empty
/// when it is not set.
std::string_view variable_in(std::string_view environment, std::string_view name);

}  // namespace stormo::launch
