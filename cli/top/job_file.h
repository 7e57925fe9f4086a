#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {

/// Where a job of this user can be looked at, which runs on this host.
struct JobPlace {
  std::string address{};      ///< "127.0.0.1:9464"
  std::string recipe{};       ///< its name
  std::string token_file{};   ///< absolute; empty: no token is needed
  pid_t process = 0;          ///< that serves the pages
  std::uint64_t started = 0;  ///< of it, see ProcessState
};

/// A file in a folder that only this user can enter, by which `stormo top` finds a job. It is
/// removed with this object.
class JobFile {
 public:
  /// `place`: without a process, which is this one.
  static Result<JobFile> write(JobPlace place, const launch::EnvironmentReader& read);
  JobFile(JobFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  JobFile& operator=(JobFile&&) = delete;
  ~JobFile();

 private:
  explicit JobFile(std::string path) : path_(std::move(path)) {}
  std::string path_;  ///< empty: moved from
};

/// The jobs of this user whose process still runs, in the order of their processes. What others, or
/// a killed process, have left is not looked at.
std::vector<JobPlace> jobs_of_host(const launch::EnvironmentReader& read);

}  // namespace stormo::cli
