#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <cli/top/job_file.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/messages/job_control.h>

namespace stormo::cli {

/// Path of the socket by which a job that this process launches takes requests. kRefused where
/// there is no folder that only this user can enter.
Result<std::string> own_job_socket(const launch::EnvironmentReader& read);

/// An elastic job of this user whose launcher runs on this host.
struct ElasticJob {
  pid_t launcher = 0;
  std::string socket{};
  Result<launch::JobSize> size = launch::JobSize{};  ///< as it was when it was found
};

/// All of them, in the order of their launchers. What a killed launcher has left is not looked at.
std::vector<ElasticJob> elastic_jobs(const launch::EnvironmentReader& read);

/// The one that a user means: `name` is the HOST:PORT by which `stormo top` finds it, of `places`,
/// or the number of its launcher; empty for the only one of `jobs`. Everything wrong is
/// kInvalidArgument or kNotFound, with the remedy; several jobs are listed.
Result<ElasticJob> choose_elastic(const std::string& name, const std::vector<ElasticJob>& jobs,
                                  const std::vector<JobPlace>& places);

}  // namespace stormo::cli
