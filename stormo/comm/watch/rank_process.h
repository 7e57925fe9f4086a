#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// What others need to know of a rank to look at its process when it does not answer.
struct RankProcess {
  std::string identity;  ///< "rank 1 (host a, pid 4711)"
  pid_t pid = 0;
  std::string space;  ///< its process_namespace()
  bool operator==(const RankProcess&) const = default;
};
/// Finds that of another rank in the job's Store. Blocks at most until the deadline.
using FindProcess = std::function<Result<RankProcess>(transport::StoreClient&, Rank, Deadline)>;

}  // namespace stormo::comm
