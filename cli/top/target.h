#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cli/top/job_file.h>
#include <cli/top/job_status.h>
#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/observe/http/client.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {

/// A job that is to be looked at.
struct Target {
  transport::HostPort address;
  std::string token{};       ///< empty: none
  std::string token_file{};  ///< that it is from

  std::string name() const { return transport::to_string(address); }
  observe::HttpGet::Options page(const char* path) const {
    return {.address = address, .path = path, .token = token};
  }
};

/// "127.0.0.1:9464", also of a URL such as "http://127.0.0.1:9464/metrics".
Result<transport::HostPort> parse_job(std::string_view text);

/// The job that a user means: `job` is as on the command line, empty for the only one of `jobs`,
/// which run on this host. `token_file`: empty for that of the job. Everything wrong is
/// kInvalidArgument or kNotFound, with the remedy; several jobs are listed.
Result<Target> choose_job(const std::string& job, const std::string& token_file,
                          const std::vector<JobPlace>& jobs);

/// What a page of a job says; `answer` is that of HttpGet. Failures name cause and remedy.
Result<JobStatus> status_in(const Target& target, const Result<observe::HttpResponse>& answer);

/// The same, now.
Result<JobStatus> ask(const Target& target, Deadline by);

}  // namespace stormo::cli
