#include <stormo/launch/tf_config.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/requirements.h>
#include <stormo/base/text.h>

namespace stormo::launch {
namespace {

using nlohmann::json;
using Role = ClusterTask::Role;

/// Reads the parts, and collects everything that is wrong with them.
class TfConfigReading {
 public:
  explicit TfConfigReading(const json& config) : config_(config) {}

  void wrong(std::string_view field, std::string_view what) {
    require_(false, fmt::format("TF_CONFIG: {}: {}", field, what));
  }
  Status status() const { return require_.status(); }

  /// An object; null, which has no members, after noting that it is missing.
  const json& part(const char* name) {
    static const json kNone = json::object();
    if (config_.contains(name) && config_[name].is_object()) return config_[name];
    wrong(name, "missing");
    return kNone;
  }

  /// The addresses of a role; empty if the cluster has none of it.
  std::vector<transport::HostPort> addresses(const json& cluster, const char* role) {
    const std::string field = fmt::format("cluster.{}", role);
    std::vector<transport::HostPort> out;
    for (const json& entry : entries(cluster, role, field)) {
      if (!entry.is_string()) {
        wrong(field, entry.dump() + " is no \"host:port\"");
        out.emplace_back();
        continue;
      }
      const auto address = address_of(entry.get<std::string>());
      if (!address.ok())
        wrong(field, address.status().message());
      else if (address->port == 0)
        wrong(field, entry.dump() + " has no port");
      out.push_back(address.ok() ? *address : transport::HostPort{});
    }
    return out;
  }

  /// A number, also as text, below `count`.
  int index(const json& task, const std::string& type, std::size_t count) {
    const json value = task.contains("index") ? task["index"] : json();
    std::optional<std::int64_t> index;
    if (value.is_number_integer()) index = value.get<std::int64_t>();
    if (value.is_string()) index = number_in<std::int64_t>(value.get<std::string>());
    if (!index) {
      wrong("task.index", value.is_null() ? "missing; give a number from 0"
                                          : value.dump() + " is no number from 0");
    } else if (*index < 0 || *index >= static_cast<std::int64_t>(count)) {
      wrong("task.index", fmt::format("{}, but cluster.{} has {} entries", *index, type, count));
    } else {
      return static_cast<int>(*index);
    }
    return 0;
  }

 private:
  /// A list, or an object with all numbers from 0 as its keys.
  std::vector<json> entries(const json& cluster, const char* role, const std::string& field) {
    if (!cluster.contains(role)) return {};
    const json& list = cluster[role];
    std::vector<json> out;
    if (list.is_array()) return list.get<std::vector<json>>();
    for (std::size_t i = 0; list.is_object() && i < list.size(); ++i) {
      const std::string key = std::to_string(i);
      if (list.contains(key)) out.push_back(list[key]);
    }
    if (!list.is_object() || out.size() != list.size()) wrong(field, "give a list of addresses");
    return out;
  }

  static Result<transport::HostPort> address_of(std::string text) {
    constexpr std::string_view kScheme = "grpc://";
    if (text.starts_with(kScheme)) text.erase(0, kScheme.size());
    if (text.find("://") != std::string::npos)
      return invalid_argument(fmt::format("'{}': write host:port", text));
    STORMO_ASSIGN_OR_RETURN(transport::HostPort address, transport::parse_host_port(text));
    address.host = lower_case(address.host);
    return address;
  }

  const json& config_;
  Requirements require_{"\n"};
};

/// Names of the first worker; the second one is of TensorFlow 1.
constexpr const char* kChiefs[] = {"chief", "master"};

void check_roles(const json& cluster, TfConfigReading& in) {
  constexpr std::string_view kRoles[] = {"chief", "master", "worker", "ps", "evaluator"};
  for (const auto& [role, list] : cluster.items()) {
    if (std::ranges::find(kRoles, role) == std::end(kRoles))
      in.wrong("cluster." + role, "there are chief, worker, ps and evaluator");
  }
}

/// Two servers cannot listen at one address.
void check_twice(std::vector<transport::HostPort> servers, TfConfigReading& in) {
  for (std::size_t i = 0; i < servers.size(); ++i) {
    if (std::find(servers.begin(), servers.begin() + static_cast<std::ptrdiff_t>(i), servers[i]) !=
        servers.begin() + static_cast<std::ptrdiff_t>(i))
      in.wrong("cluster.ps", transport::to_string(servers[i]) + " is there twice");
  }
}

std::optional<Role> role_of(const std::string& type, TfConfigReading& in) {
  if (type == "chief" || type == "worker" || type == "master") return Role::kWorker;
  if (type == "ps") return Role::kServer;
  if (type == "evaluator") return Role::kEvaluator;
  in.wrong("task.type", type.empty()
                            ? "missing; give chief, worker, ps or evaluator"
                            : fmt::format("'{}' is none of chief, worker, ps, evaluator", type));
  return std::nullopt;
}

}  // namespace

std::optional<Result<ClusterTask>> task_of_environment(const EnvironmentReader& read) {
  const std::string text = read("TF_CONFIG").value_or("");
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool says_nothing = config.is_object() && config.empty();
  if (says_nothing || text.find_first_not_of(" \t\r\n") == std::string::npos) return std::nullopt;
  return parse_tf_config(text);
}

Result<ClusterTask> parse_tf_config(std::string_view text) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return invalid_argument("TF_CONFIG is no JSON object");
  TfConfigReading in(config);
  const json &cluster = in.part("cluster"), &task = in.part("task");
  STORMO_RETURN_IF_ERROR(in.status());
  check_roles(cluster, in);
  std::vector<transport::HostPort> chiefs;
  for (const char* name : kChiefs)
    std::ranges::move(in.addresses(cluster, name), std::back_inserter(chiefs));
  const auto workers = in.addresses(cluster, "worker");
  ClusterTask out;
  out.servers = in.addresses(cluster, "ps");
  check_twice(out.servers, in);
  if (chiefs.size() > 1) in.wrong("cluster.chief", "there is at most one");
  out.workers = static_cast<int>(chiefs.size() + workers.size());
  std::set<std::string> hosts;
  for (const auto* list : {&std::as_const(chiefs), &workers, &std::as_const(out.servers)}) {
    for (const transport::HostPort& address : *list) hosts.insert(address.host);
  }
  out.hosts = static_cast<int>(hosts.size());
  if (out.workers == 0) in.wrong("cluster.worker", "no worker, and no chief");
  const bool has_type = task.contains("type") && task["type"].is_string();
  const std::string type = has_type ? task["type"].get<std::string>() : "";
  const auto role = role_of(type, in);
  const bool chief = std::ranges::find(kChiefs, type) != std::end(kChiefs);
  const auto& list = role == Role::kServer ? out.servers : chief ? chiefs : workers;
  if (role == Role::kEvaluator && out.servers.empty())
    in.wrong("cluster.ps", "no server, which an evaluator needs: it ends with them");
  out.worker_addresses = chiefs;
  out.worker_addresses.insert(out.worker_addresses.end(), workers.begin(), workers.end());
  out.cluster = cluster.dump();
  if (role && role != Role::kEvaluator && list.empty())
    in.wrong("task.type", fmt::format("'{0}', but cluster.{0} has no entries", type));
  else if (role && role != Role::kEvaluator)
    out.index = in.index(task, type, list.size());
  STORMO_RETURN_IF_ERROR(in.status());
  out.role = *role;
  if (out.role != Role::kWorker) return out;
  const std::string& host = list[static_cast<std::size_t>(out.index)].host;
  const auto is_here = [&host](const transport::HostPort& a) { return a.host == host; };
  out.workers_here = static_cast<int>(std::ranges::count_if(chiefs, is_here) +
                                      std::ranges::count_if(workers, is_here));
  if (!chief) out.index += static_cast<int>(chiefs.size());
  return out;
}

}  // namespace stormo::launch
