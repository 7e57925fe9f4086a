#pragma once

#include <string>
#include <vector>

#include <stormo/launch/job/host_job.h>
#include <stormo/launch/job/launcher.h>

namespace stormo::launch {

/// A job as it will be started: everything is decided and checked, nothing runs.
struct JobPlan {
  std::vector<HostJob> hosts;  ///< without store and secret, which come to be later
  std::vector<std::vector<std::string>> shells;  ///< per host; empty: this one
  std::string listen;                            ///< for the Store
  int ranks = 0;
};

/// `environment` is that of the launcher. Lists everything that is wrong at once.
Result<JobPlan> plan_job(const LaunchOptions& options, const std::vector<std::string>& environment);

}  // namespace stormo::launch
