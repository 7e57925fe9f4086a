#include <cli/top/job_file.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string_view>
#include <system_error>

#include <stormo/base/file.h>
#include <stormo/base/json_depth.h>
#include <stormo/base/proc.h>
#include <stormo/base/replace_file.h>
#include <stormo/comm/job/private_folder.h>
#include <stormo/launch/private_folders.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kJobFileSchema = 1;
constexpr std::string_view kPrefix = "job-", kSuffix = ".json";

std::optional<ProcessState> state_of(pid_t process) {
  return process_state(fs::path("/proc") / std::to_string(process));
}

std::string text_of(const JobPlace& place) {
  return Json{{"schema", kJobFileSchema}, {"address", place.address},
              {"recipe", place.recipe},   {"token_file", place.token_file},
              {"process", place.process}, {"started", place.started}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Nothing for what is no such file, or one of another version.
std::optional<JobPlace> parse_job_file(const std::string& text) {
  if (!json_nests_within(text)) return std::nullopt;
  const Json all = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || all.value("schema", Json()) != kJobFileSchema) return std::nullopt;
  for (const char* key : {"address", "recipe", "token_file"}) {
    if (!all.value(key, Json()).is_string()) return std::nullopt;
  }
  for (const char* key : {"process", "started"}) {
    if (!all.value(key, Json()).is_number_unsigned()) return std::nullopt;
  }
  return JobPlace{.address = all["address"],
                  .recipe = all["recipe"],
                  .token_file = all["token_file"],
                  .process = all["process"],
                  .started = all["started"]};
}

/// A number that was used again is another process: it has started at another time.
bool still_runs(const JobPlace& place) {
  const std::optional<ProcessState> now = state_of(place.process);
  return now && now->started == place.started && now->letter != 'Z' && now->letter != 'X';
}

}  // namespace

Result<JobFile> JobFile::write(JobPlace place, const launch::EnvironmentReader& read) {
  const Result<std::string> folder = comm::private_folder(launch::private_folders(read));
  if (!folder.ok()) {
    return Status(Code::kRefused,
                  "there is no folder that only this user can enter; set XDG_RUNTIME_DIR to one");
  }
  place.process = ::getpid();
  const std::optional<ProcessState> own = state_of(place.process);
  if (!own) return io_error("/proc does not show this process");
  place.started = own->started;
  const std::string path = fmt::format("{}/{}{}{}", *folder, kPrefix, place.process, kSuffix);
  STORMO_RETURN_IF_ERROR(
      replace_file(path, [&place](std::ostream& file) { file << text_of(place) << "\n"; }));
  return JobFile(path);
}

JobFile::~JobFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::vector<JobPlace> jobs_of_host(const launch::EnvironmentReader& read) {
  std::vector<JobPlace> jobs;
  for (const std::string& folder : launch::private_folders(read)) {
    if (!comm::check_private(folder).ok()) continue;
    std::error_code ended;
    for (fs::directory_iterator it(folder, ended), end; it != end && !ended; it.increment(ended)) {
      const std::string name = it->path().filename();
      if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
      const std::optional<JobPlace> job = parse_job_file(first_line(it->path()));
      if (job && still_runs(*job)) jobs.push_back(*job);
    }
  }
  std::ranges::sort(jobs, {}, &JobPlace::process);
  return jobs;
}

}  // namespace stormo::cli
