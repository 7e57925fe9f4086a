#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/launch/job/launcher.h>
#include <stormo/launch/messages/host_job.h>
#include <stormo/launch/process/descriptors.h>

namespace stormo::launch {

/// A job that is completely decided and checked, but not yet started.
struct JobPlan {
  std::vector<HostJob> hosts;                    ///< without store and secret, which are set later
  std::vector<std::vector<std::string>> shells;  ///< per host; empty: this one
  std::vector<int> slots;                        ///< per host: for how many ranks
  std::string listen;                            ///< for the Store
  std::string address = "127.0.0.1";             ///< by which all ranks reach this machine
  int ranks = 0;
  RanksToLose may_be_lost;
  std::optional<Elastic> elastic;
  std::vector<int> acceptors;  ///< register_hosts() of an elastic job with a register of its own
};

/// `environment` is that of the launcher. The failure lists all errors.
Result<JobPlan> plan_job(const LaunchOptions& options, const std::vector<std::string>& environment);

/// Adds hosts, as in -H, to the plan of an elastic job that runs: without ranks, which come when
/// its size changes. Returns the number of their slots. kInvalidArgument lists all errors.
Result<int> add_hosts(std::string_view hosts, const LaunchOptions& options,
                      const std::vector<std::string>& environment, JobPlan& plan);

/// What its launcher opens.
DescriptorUse descriptors_of(const JobPlan& plan);

/// The number of the acceptor that this machine has.
std::optional<std::size_t> own_acceptor(const JobPlan& plan);

}  // namespace stormo::launch
