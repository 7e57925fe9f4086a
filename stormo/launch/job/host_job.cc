#include <stormo/launch/job/host_job.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <stormo/base/version.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/openmp_waits.h>

namespace stormo::launch {
namespace {

using nlohmann::json;

std::string_view name_of(std::string_view assignment) {
  return assignment.substr(0, assignment.find('='));
}

/// JSON is text, an environment is bytes: escaped so that every byte survives.
std::string to_latin1_utf8(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xc0 | (u >> 6));
      out += static_cast<char>(0x80 | (u & 0x3f));
    }
  }
  return out;
}

std::string from_latin1_utf8(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto u = static_cast<unsigned char>(text[i]);
    if (u >= 0xc2 && u <= 0xc3 && i + 1 < text.size())
      out += static_cast<char>(((u & 0x03) << 6) | (static_cast<unsigned char>(text[++i]) & 0x3f));
    else
      out += text[i];
  }
  return out;
}

json to_list(const std::vector<std::string>& texts) {
  json list = json::array();
  for (const std::string& t : texts) list.push_back(to_latin1_utf8(t));
  return list;
}

std::vector<std::string> from_list(const json& list) {
  std::vector<std::string> out;
  for (const json& item : list) out.push_back(from_latin1_utf8(item.get<std::string>()));
  return out;
}

std::string heartbeat_text(Duration d) {
  return fmt::format("{}ms", std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

Status check(const HostJob& job) {
  const bool sound = !job.program.empty() && job.size >= 1 && job.size <= kMaxRanks &&
                     job.local_size >= 1 && job.first_rank >= 0 &&
                     job.first_rank <= job.size - job.local_size && job.cross_rank >= 0 &&
                     job.cross_rank < job.cross_size;
  return sound ? Status{} : Status(Code::kCorrupt, "job description: ranks out of bounds");
}

}  // namespace

std::string to_json(const HostJob& job) {
  return json{{"version", kVersion},
              {"program", to_list(job.program)},
              {"forks", job.forks},
              {"directory", to_latin1_utf8(job.directory)},
              {"environment", to_list(job.environment)},
              {"host", job.host},
              {"cross_rank", job.cross_rank},
              {"cross_size", job.cross_size},
              {"size", job.size},
              {"first_rank", job.first_rank},
              {"local_size", job.local_size},
              {"store", job.store.text},
              {"secret", job.secret.to_hex()},
              {"interface", to_latin1_utf8(job.interface)},
              {"ports", {job.ports.first, job.ports.last}},
              {"heartbeat_ns", job.heartbeat_timeout.count()},
              {"bind", to_string(job.bind)}}
      .dump();
}

Result<HostJob> host_job_from_json(std::string_view text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object()) return Status(Code::kCorrupt, "job description: not a JSON object");
  HostJob job;
  try {
    const auto version = in.at("version").get<std::string>();
    if (version != kVersion)
      return Status(Code::kRefused,
                    fmt::format("version {} of the launcher and {} of this host's stormo differ; "
                                "install the same version on all hosts",
                                version, kVersion));
    job.program = from_list(in.at("program"));
    in.at("forks").get_to(job.forks);
    job.directory = from_latin1_utf8(in.at("directory").get<std::string>());
    job.environment = from_list(in.at("environment"));
    in.at("host").get_to(job.host);
    in.at("cross_rank").get_to(job.cross_rank);
    in.at("cross_size").get_to(job.cross_size);
    in.at("size").get_to(job.size);
    in.at("first_rank").get_to(job.first_rank);
    in.at("local_size").get_to(job.local_size);
    in.at("store").get_to(job.store.text);
    job.interface = from_latin1_utf8(in.at("interface").get<std::string>());
    in.at("ports").at(0).get_to(job.ports.first);
    in.at("ports").at(1).get_to(job.ports.last);
    job.heartbeat_timeout = Duration(in.at("heartbeat_ns").get<std::int64_t>());
    STORMO_ASSIGN_OR_RETURN(job.bind, parse_bind_policy(in.at("bind").get<std::string>()));
    if (const auto secret = in.at("secret").get<std::string>(); !secret.empty()) {
      STORMO_ASSIGN_OR_RETURN(job.secret, transport::Secret::from_hex(secret));
    }
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, fmt::format("job description: {}", e.what()));
  }
  STORMO_RETURN_IF_ERROR(check(job));
  return job;
}

std::vector<std::string> rank_environment(const HostJob& job, int local_rank, const Cpus& cpus,
                                          int secret_fd) {
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
