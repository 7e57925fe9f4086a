#include <stormo/checkpoint/format/run_identity.h>

#include <utility>

#include <stormo/checkpoint/file/staging.h>

namespace stormo::checkpoint {

RunIdentity new_run(std::vector<std::string> replaces) {
  return {random_suffix(), std::move(replaces)};
}

RunIdentity continued_run(const RunIdentity& run) { return run.id.empty() ? new_run({""}) : run; }

}  // namespace stormo::checkpoint
