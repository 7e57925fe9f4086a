#pragma once

#include <cstdint>

#include <stormo/base/status.h>

namespace stormo::launch {

/// What decides how many files the processes of a job have open at the same time.
struct DescriptorUse {
  int local_ranks = 0;  ///< started by this process
  int ranks = 0;        ///< of the whole job
  int other_hosts = 0;  ///< reached by a remote shell of this process
  int sockets = 1;      ///< between each two ranks of different hosts
  bool serves_store = false;
};

/// Descriptors that this process and each rank it starts can do with.
std::int64_t descriptors_needed(const DescriptorUse& use);

/// Raises the soft limit, which the ranks inherit, as far as it helps. kInvalidArgument when even
/// the hard one is too low.
Status provide_descriptors(const DescriptorUse& use);

}  // namespace stormo::launch
