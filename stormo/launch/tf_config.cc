#include <stormo/launch/tf_config.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

namespace stormo::launch {
namespace {

using nlohmann::json;
using Role = ClusterTask::Role;

Status wrong(std::string_view field, const std::string& what) {
  return invalid_argument(fmt::format("TF_CONFIG: {}: {}", field, what));
}

/// The addresses of a role; empty if the cluster has none of it.
Result<std::vector<transport::HostPort>> addresses_of(const json& cluster, const char* role) {
  const std::string field = fmt::format("cluster.{}", role);
  std::vector<transport::HostPort> out;
  if (!cluster.contains(role)) return out;
  const json& list = cluster[role];
  if (!list.is_array()) return wrong(field, "give a list of addresses");
  for (const json& entry : list) {
    if (!entry.is_string()) return wrong(field, entry.dump() + " is no \"host:port\"");
    const auto address = transport::parse_host_port(entry.get<std::string>());
    if (!address.ok()) return wrong(field, address.status().message());
    if (address->port == 0) return wrong(field, entry.dump() + " has no port");
    out.push_back(*address);
  }
  return out;
}

Result<Role> role_of(const json& task) {
  if (!task.contains("type") || !task["type"].is_string()) {
    return wrong("task.type", "missing; give chief, worker, ps or evaluator");
  }
  const auto type = task["type"].get<std::string>();
  if (type == "chief" || type == "worker") return Role::kWorker;
  if (type == "ps") return Role::kServer;
  if (type == "evaluator") return Role::kEvaluator;
  return wrong("task.type", fmt::format("'{}' is none of chief, worker, ps, evaluator", type));
}

Result<int> index_of(const json& task, std::size_t count) {
  if (!task.contains("index") || !task["index"].is_number_integer()) {
    return wrong("task.index", "missing; give a number from 0");
  }
  const auto index = task["index"].get<std::int64_t>();
  if (index >= 0 && index < static_cast<std::int64_t>(count)) return static_cast<int>(index);
  return wrong("task.index", fmt::format("{}, but cluster.{} has {} entries", index,
                                         task["type"].get<std::string>(), count));
}

}  // namespace

Result<ClusterTask> parse_tf_config(std::string_view text) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return invalid_argument("TF_CONFIG is no JSON object");
  for (const char* part : {"cluster", "task"}) {
    if (!config.contains(part) || !config[part].is_object()) return wrong(part, "missing");
  }
  const json &cluster = config["cluster"], &task = config["task"];
  STORMO_ASSIGN_OR_RETURN(const auto chiefs, addresses_of(cluster, "chief"));
  STORMO_ASSIGN_OR_RETURN(const auto workers, addresses_of(cluster, "worker"));
  ClusterTask out;
  STORMO_ASSIGN_OR_RETURN(out.servers, addresses_of(cluster, "ps"));
  if (chiefs.size() > 1) return wrong("cluster.chief", "there is at most one");
  out.workers = static_cast<int>(chiefs.size() + workers.size());
  std::set<std::string> hosts;
  for (const auto* list : {&chiefs, &workers, &std::as_const(out.servers)}) {
    for (const transport::HostPort& address : *list) hosts.insert(address.host);
  }
  out.hosts = static_cast<int>(hosts.size());
  if (out.workers == 0) return wrong("cluster.worker", "no worker, and no chief");
  if (out.servers.empty()) return wrong("cluster.ps", "no server; give at least one address");
  STORMO_ASSIGN_OR_RETURN(out.role, role_of(task));
  if (out.role == Role::kEvaluator) return out;
  const bool chief = task["type"] == "chief";
  const std::size_t count =
      out.role == Role::kServer ? out.servers.size() : (chief ? chiefs : workers).size();
  STORMO_ASSIGN_OR_RETURN(out.index, index_of(task, count));
  if (out.role != Role::kWorker) return out;
  const std::string& host = (chief ? chiefs : workers)[static_cast<std::size_t>(out.index)].host;
  const auto is_here = [&host](const transport::HostPort& a) { return a.host == host; };
  out.workers_here = static_cast<int>(std::ranges::count_if(chiefs, is_here) +
                                      std::ranges::count_if(workers, is_here));
  if (!chief) out.index += static_cast<int>(chiefs.size());
  return out;
}

}  // namespace stormo::launch
