#pragma once

#include <cstdint>

#include <stormo/base/status.h>

namespace stormo::launch {

/// The numbers that determine how many descriptors the processes of a job need.
struct DescriptorUse {
  int local_ranks = 0;  ///< started by this process
  int ranks = 0;        ///< of the whole job
  int other_hosts = 0;  ///< reached by a remote shell of this process
  int sockets = 1;      ///< between each two ranks of different hosts
  bool serves_store = false;
  bool serves_register = false;  ///< of the members of an elastic job
};

/// Number of descriptors that is sufficient for this process and for each rank that it starts.
std::int64_t descriptors_needed(const DescriptorUse& use);

/// Raises the soft limit, which the ranks inherit, if it is too low. kInvalidArgument when the hard
/// limit is too low.
Status provide_descriptors(const DescriptorUse& use);

/// A program may be started with its standard descriptors closed; files of ours must not land
/// there.
void fill_standard_descriptors();

}  // namespace stormo::launch
