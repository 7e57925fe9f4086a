#include <cli/doctor/report.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <stormo/base/version.h>

namespace stormo::cli {

using nlohmann::json;

HostReport report_host() {
  HostReport report;
  report.facts = read_host_facts();
  if (auto answer = torch_facts(); answer.ok()) {
    report.torch = std::move(*answer);
  } else {
    report.facts.torch_problem = answer.status().message();
  }
  report.found = findings(report.facts);
  return report;
}

namespace {

/// Names come from files and may hold bytes that are no UTF-8.
std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Finding& f) {
  return text_of({{"fatal", f.fatal}, {"what", f.what}, {"why", f.why}, {"remedy", f.remedy}});
}

std::string to_json(const HostReport& r) {
  const HostFacts& f = r.facts;
  json limits = json::object();
  for (const Limit& l : f.limits)
    limits[l.name] = {{"soft", l.soft ? json(*l.soft) : json()},
                      {"hard", l.hard ? json(*l.hard) : json()}};
  json interfaces = json::array();
  for (const auto& i : f.interfaces)
    interfaces.push_back({{"name", i.name}, {"address", i.address}, {"loopback", i.loopback}});
  json found = json::array();
  for (const Finding& finding : r.found) found.push_back(json::parse(to_json(finding)));
  return text_of(
      {{"schema", 1},
       {"version", kVersion},
       {"protocol", kProtocolVersion},
       {"host", f.host},
       {"kernel", f.kernel},
       {"host_addresses", f.host_addresses},
       {"cores", f.cpus.cores.size()},
       {"logical_cpus", f.cpus.logical},
       {"usable_cores", f.cpus.usable_cores()},
       {"numa_nodes", f.cpus.numa_nodes.size()},
       {"cpu_quota", f.cpus.quota > 0 ? json(f.cpus.quota) : json()},
       {"load", f.load},
       {"slowdown",
        {{"computing", f.slowdown.computing},
         {"moving_memory", f.slowdown.moving_memory},
         {"others_busy_cores", f.slowdown.others}}},
       {"memory_bytes", f.memory_bytes},
       {"memory_available_bytes", f.memory_available_bytes},
       {"memory_limit_bytes", f.memory_limit_bytes ? json(*f.memory_limit_bytes) : json()},
       {"pids_limit", f.pids_limit ? json(*f.pids_limit) : json()},
       {"huge_pages", f.hugepages},
       {"shared_memory_huge_pages", f.shared_hugepages},
       {"hugepages_free", f.hugepages_free},
       {"dev_shm_bytes", f.shm_bytes},
       {"limits", limits},
       {"interfaces", interfaces},
       {"congestion_control", f.congestion_control},
       {"memfd", f.has_memfd},
       {"pidfd", f.has_pidfd},
       {"torch", r.torch ? json::parse(to_json(*r.torch)) : json()},
       {"findings", found}});
}

}  // namespace stormo::cli
