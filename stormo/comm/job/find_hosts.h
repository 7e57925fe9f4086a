#pragma once

#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/comm/job/bulletin.h>
#include <stormo/comm/job/join_by_bulletin.h>

namespace stormo::comm {

/// Which ranks are on one host, as these have proved.
struct Hosts {
  std::vector<int> ranks_per_host;  ///< ranks are numbered host by host
  std::string id;                   ///< of this world: random, of letters and digits
  /// With one host: this rank's connections, rank 0's with all others, and theirs with rank 0.
  std::vector<Descriptor> connections;
};

/// All ranks of the Bulletin call this. The same failure on all of them, where it is not of one
/// rank's own: see join() by a Bulletin.
Result<Hosts> find_hosts(Bulletin& bulletin, const WorldOptions& options, Deadline by);

}  // namespace stormo::comm
