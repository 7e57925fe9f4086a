#include <stormo/launch/messages/host_job.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/version.h>
#include <stormo/launch/openmp_waits.h>
#include <stormo/launch/process/outlive.h>

namespace stormo::launch {
namespace {

std::string_view name_of(std::string_view assignment) {
  return assignment.substr(0, assignment.find('='));
}

std::string heartbeat_text(Duration d) {
  return fmt::format("{}ms", std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

/// Any version reads the first field.
struct JobMessage {
  std::string version;
  std::string_view job;
};
void fields(auto& visit, transport::Like<JobMessage> auto& message) {
  visit("job description", message.version, transport::rest(message.job));
}

}  // namespace

std::string encode(const HostJob& job) {
  return transport::encode(JobMessage{.version = kVersion, .job = transport::encode(job)});
}

Result<HostJob> decode_host_job(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(const auto message, transport::decode<JobMessage>("launcher", bytes));
  if (message.version != kVersion) {
    return Status(Code::kRefused,
                  fmt::format("version {} of the launcher and {} of this host's stormo differ; "
                              "install the same version on all hosts",
                              message.version, kVersion));
  }
  return transport::decode<HostJob>("launcher", message.job);
}

std::vector<std::string> rank_environment(const HostJob& job, int local_rank, const Cpus& cpus,
                                          int secret_fd, int incarnation) {
  std::vector<std::string> out = job.environment;
  const auto set = [&](std::string_view name, const auto& value) {
    std::erase_if(out, [&](const std::string& e) { return name_of(e) == name; });
    out.push_back(fmt::format("{}={}", name, value));
  };
  const auto set_if_absent = [&](std::string_view name, const auto& value) {
    if (value_of(out, name).empty()) set(name, value);
  };
  set("STORMO_RANK", job.first_rank + local_rank);
  set("STORMO_WORLD_SIZE", job.size);
  set("STORMO_LOCAL_RANK", local_rank);
  set("STORMO_LOCAL_SIZE", job.local_size);
  set("STORMO_CROSS_RANK", job.cross_rank);
  set("STORMO_CROSS_SIZE", job.cross_size);
  set("STORMO_HOST", job.host);
  set("STORMO_STORE", job.store.text);
  set("STORMO_HEARTBEAT", heartbeat_text(job.heartbeat_timeout));
  if (secret_fd >= 0) set("STORMO_SECRET_FD", secret_fd);
  if (!job.name.empty()) {
    set("STORMO_JOB", job.name);
    set("STORMO_REGISTER", job.register_address);
    set("STORMO_INCARNATION", incarnation);
  }
  if (!job.interface.empty()) set("STORMO_INTERFACE", job.interface);
  if (job.ports.first != 0)
    set("STORMO_PORTS", fmt::format("{}-{}", job.ports.first, job.ports.last));
  // what the user has said of one counts for the other
  const Result<int> given = given_threads(out);
  const int threads = given.ok() && *given > 0 ? *given : threads_per_rank(cpus, job.local_size);
  set_if_absent("STORMO_THREADS", threads);
  set_if_absent("OMP_NUM_THREADS", threads);
  if (!openmp_waits_are_given(out)) out.emplace_back(kOpenMpSpins);
  return out;
}

bool loads_program_once(const HostJob& job) {
  static constexpr std::string_view kVariables[] = {"OMP_PROC_BIND", "OMP_PLACES",
                                                    "GOMP_CPU_AFFINITY", "KMP_AFFINITY"};
  return job.forks && job.local_size > 1 &&
         std::ranges::all_of(kVariables, [&](std::string_view name) {
           return value_of(job.environment, name).empty();
         });
}

bool outlives_launcher(const HostJob& job) {
  return !job.name.empty() &&
         outlives_launcher(value_of(job.environment, kOutlivesVariable), job.cross_size);
}

std::vector<std::string> without_placement(const std::vector<std::string>& environment) {
  std::vector<std::string> out;
  for (const std::string& e : environment)
    if (!places_a_rank(name_of(e))) out.push_back(e);
  return out;
}

std::vector<std::string> portable(const std::vector<std::string>& environment) {
  static constexpr std::string_view kNames[] = {
      "HOME", "USER",   "LOGNAME", "SHELL", "HOSTNAME",   "MAIL", "DISPLAY",  "TMPDIR",
      "PWD",  "OLDPWD", "SHLVL",   "TERM",  "XAUTHORITY", "_",    "WINDOWID", "TERM_PROGRAM"};
  static constexpr std::string_view kPrefixes[] = {"SSH_", "XDG_", "DBUS_", "SUDO_"};
  std::vector<std::string> out;
  for (const std::string& e : environment) {
    const std::string_view name = name_of(e);
    const bool own = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
                     std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                 [&](std::string_view p) { return name.starts_with(p); });
    if (!own) out.push_back(e);
  }
  return out;
}

Result<int> given_threads(const std::vector<std::string>& environment) {
  return threads_per_rank([&environment](std::string_view name) -> std::optional<std::string> {
    const std::string_view value = value_of(environment, name);
    return value.empty() ? std::nullopt : std::optional(std::string(value));
  });
}

std::string_view value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& e : environment)
    if (name_of(e) == name && e.size() > name.size())
      return std::string_view(e).substr(name.size() + 1);
  return {};
}

}  // namespace stormo::launch
