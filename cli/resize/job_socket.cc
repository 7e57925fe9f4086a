#include <cli/resize/job_socket.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <cli/top/target.h>
#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/comm/job/private_folder.h>
#include <stormo/launch/private_folders.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSocketPrefix = "elastic-", kSocketSuffix = ".sock";
constexpr Duration kPatienceWithJob = std::chrono::seconds(2);
constexpr std::size_t kLongestCommand = 120;

/// "4711  4 ranks  stormo-train train mnist.toml -n 4"
std::string line_of(const ElasticJob& job) {
  if (!job.size.ok()) return fmt::format("{}  {}", job.launcher, job.size.status().message());
  return printable_line(fmt::format("{}  {} ranks  {}", job.launcher, job.size->ranks,
                                    job.size->command.substr(0, kLongestCommand)));
}

std::string lines_of(const std::vector<ElasticJob>& jobs) {
  std::string text;
  for (const ElasticJob& job : jobs) text += "\n  " + line_of(job);
  return text;
}

/// The launcher of the rank that serves the pages of a job.
Result<ElasticJob> with_pages(const std::string& name, const std::vector<ElasticJob>& jobs,
                              const std::vector<JobPlace>& places) {
  STORMO_ASSIGN_OR_RETURN(const transport::HostPort address, parse_job(name));
  const auto place = std::ranges::find(places, transport::to_string(address), &JobPlace::address);
  if (place == places.end()) {
    return Status(Code::kNotFound,
                  fmt::format("no job of this user on this host is at {}; `stormo resize -n N` "
                              "without a name finds those whose launcher runs here",
                              printable_line(name)));
  }
  const auto job = std::ranges::find_if(jobs, [&place](const ElasticJob& j) {
    return j.size.ok() &&
           std::ranges::find(j.size->processes, place->process) != j.size->processes.end();
  });
  if (job != jobs.end()) return *job;
  return invalid_argument(
      fmt::format("the job at {} keeps its number of ranks: only elastic jobs change it, which are "
                  "started with elastic.enabled=true, and are asked on the host of their launcher",
                  printable_line(name)));
}

}  // namespace

Result<std::string> own_job_socket(const launch::EnvironmentReader& read) {
  STORMO_ASSIGN_OR_RETURN(const std::string folder,
                          comm::private_folder(launch::private_folders(read)));
  return fmt::format("{}/{}{}{}", folder, kSocketPrefix, ::getpid(), kSocketSuffix);
}

std::vector<ElasticJob> elastic_jobs(const launch::EnvironmentReader& read) {
  std::vector<ElasticJob> jobs;
  for (const std::string& folder : launch::private_folders(read)) {
    if (!comm::check_private(folder).ok()) continue;
    std::error_code ended;
    for (fs::directory_iterator it(folder, ended), end; it != end && !ended; it.increment(ended)) {
      const std::string name = it->path().filename();
      if (!name.starts_with(kSocketPrefix) || !name.ends_with(kSocketSuffix)) continue;
      const std::string_view number = std::string_view(name).substr(
          kSocketPrefix.size(), name.size() - kSocketPrefix.size() - kSocketSuffix.size());
      ElasticJob job{.launcher = number_in<pid_t>(number).value_or(0), .socket = it->path()};
      job.size = launch::ask_job(job.socket, {}, Deadline::after(kPatienceWithJob));
      if (job.size.status().code() != Code::kNotFound) jobs.push_back(std::move(job));
    }
  }
  std::ranges::sort(jobs, {}, &ElasticJob::launcher);
  return jobs;
}

Result<ElasticJob> choose_elastic(const std::string& name, const std::vector<ElasticJob>& jobs,
                                  const std::vector<JobPlace>& places) {
  const std::optional<pid_t> launcher = number_in<pid_t>(name);
  if (!name.empty() && !launcher) return with_pages(name, jobs, places);
  if (jobs.empty()) {
    return Status(Code::kNotFound,
                  "no elastic job of this user has its launcher on this host; start one with "
                  "`stormo train ... -n 4 elastic.enabled=true`");
  }
  if (name.empty() && jobs.size() > 1) {
    return invalid_argument(
        fmt::format("{} elastic jobs of this user run here; name one of them, such as `stormo "
                    "resize {} -n N`{}",
                    jobs.size(), jobs.front().launcher, lines_of(jobs)));
  }
  const auto job =
      name.empty() ? jobs.begin() : std::ranges::find(jobs, *launcher, &ElasticJob::launcher);
  if (job != jobs.end()) return *job;
  return Status(Code::kNotFound,
                fmt::format("process {} is no launcher of an elastic job of this user; there {}:{}",
                            name, jobs.size() == 1 ? "is" : "are", lines_of(jobs)));
}

}  // namespace stormo::cli
