#include <nlohmann/json.hpp>

#include <cli/doctor/hosts/cluster.h>
#include <stormo/base/json_depth.h>

namespace stormo::cli {
namespace {

using nlohmann::json;

std::optional<std::uint64_t> number_or_none(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::uint64_t>());
}

HostSummary summary_of(const json& in) {
  HostSummary out;
  in.at("version").get_to(out.version);
  in.at("protocol").get_to(out.protocol);
  if (!in.at("torch").is_null()) in.at("torch").at("version").get_to(out.torch);
  in.at("kernel").get_to(out.kernel);
  in.at("usable_cores").get_to(out.usable_cores);
  in.at("memory_bytes").get_to(out.memory_bytes);
  out.memory_limit_bytes = number_or_none(in.at("memory_limit_bytes"));
  in.at("dev_shm_bytes").get_to(out.shm_bytes);
  for (const auto& [name, limit] : in.at("limits").items())
    out.limits.push_back(
        {name, number_or_none(limit.at("soft")), number_or_none(limit.at("hard"))});
  for (const json& f : in.at("findings"))
    out.found.push_back({f.at("fatal"), f.at("what"), f.at("why"), f.at("remedy")});
  return out;
}

ClusterLink link_of(int from, const json& in) {
  ClusterLink out{.from = from, .to = in.at("to"), .measured = {}};
  in.at("problem").get_to(out.measured.problem);
  in.at("encrypted").get_to(out.measured.is_encrypted);
  in.at("mtu").get_to(out.measured.mtu);
  in.at("round_trip_s").get_to(out.measured.round_trip_seconds);
  in.at("clock_ahead_s").get_to(out.measured.clock_ahead_seconds);
  in.at("bytes_per_s").get_to(out.measured.bytes_per_second);
  return out;
}

}  // namespace

Status add_answer(Cluster& cluster, int from, std::string_view text) {
  if (!json_nests_within(text)) return Status(Code::kCorrupt, "its report nests too deep");
  try {
    const json in = json::parse(text);
    HostSummary summary = summary_of(in);
    std::vector<ClusterLink> links;
    for (const json& link : in.at("links")) {
      links.push_back(link_of(from, link));
      if (links.back().to < 0 || links.back().to >= static_cast<int>(cluster.hosts.size()))
        return Status(Code::kCorrupt, "its report names a host that is none");
    }
    cluster.hosts.at(static_cast<std::size_t>(from)).summary = std::move(summary);
    cluster.links.insert(cluster.links.end(), links.begin(), links.end());
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, std::string("its report cannot be read: ") + e.what());
  }
  return {};
}

}  // namespace stormo::cli
