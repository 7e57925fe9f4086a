#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <cli/doctor/hosts/check_hosts.h>
#include <cli/doctor/hosts/link.h>
#include <cli/doctor/report.h>
#include <cli/plan/output.h>
#include <stormo/base/text.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/job/ask_hosts.h>
#include <stormo/transport/store/store.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using transport::StoreClient;

constexpr Duration kStoreTime = std::chrono::seconds(30);
/// For the slowest of the others to arrive or to be given up.
constexpr Duration kPresentTime = std::chrono::minutes(2);

json to_json(Rank to, const LinkMeasurement& m) {
  return {{"to", to},
          {"problem", m.problem},
          {"encrypted", m.is_encrypted},
          {"mtu", m.mtu},
          {"round_trip_s", m.round_trip_seconds},
          {"clock_ahead_s", m.clock_ahead_seconds},
          {"bytes_per_s", m.bytes_per_second}};
}

std::string measured_key(Rank from, Rank to) {
  return fmt::format("hosts/measured/{}/{}", from, to);
}

/// Where other hosts reach this one: as ranks decide it.
Result<std::string> own_address(const transport::Rendezvous& r, const StoreClient& store) {
  if (!r.interface.empty()) return transport::interface_address(r.interface);
  const std::string address = store.local_address();
  return address.empty() ? "127.0.0.1" : address;
}

/// In turns: first the one with the smaller number measures, then the other one.
Result<json> measure_links(const transport::Rendezvous& r, StoreClient& store,
                           const std::vector<Rank>& present) {
  const int count = static_cast<int>(present.size());
  const Deadline by = Deadline::after(2 * kLongestMeasurement * std::max(count, 1));
  int own = 0;
  while (own < count && present[static_cast<std::size_t>(own)] != r.rank) ++own;
  if (own == count) return Status(Code::kCancelled, "the launcher has given this host up");
  json links = json::array();
  for (int round = 0; round < rounds_of_pairs(count); ++round) {
    const int partner = partner_in_round(count, own, round);
    if (partner < 0) continue;
    const Rank other = present[static_cast<std::size_t>(partner)];
    for (const bool first : {true, false}) {
      if ((r.rank < other) != first) {
        STORMO_RETURN_IF_ERROR(store.get(measured_key(other, r.rank), by).status());
        continue;
      }
      STORMO_ASSIGN_OR_RETURN(const std::string address, store.get(launch::arrival_key(other), by));
      STORMO_ASSIGN_OR_RETURN(const transport::HostPort at, transport::parse_host_port(address));
      links.push_back(to_json(other, measure_link({at, r.secret, r.rank, other, r.size})));
      STORMO_RETURN_IF_ERROR(store.set(measured_key(r.rank, other), "", by));
    }
  }
  return links;
}

}  // namespace

Status report_to_others() {
  STORMO_ASSIGN_OR_RETURN(const transport::Rendezvous r,
                          launch::read_environment(launch::process_environment()));
  if (r.store.empty())
    return invalid_argument("runs only on the hosts of 'stormo doctor -H'; use that");
  ::unsetenv("OMP_NUM_THREADS");  // set for a rank: it says nothing about the host
  json out = json::parse(to_json(report_host()));
  STORMO_ASSIGN_OR_RETURN(
      const std::unique_ptr<StoreClient> store,
      StoreClient::connect({.address = r.store, .secret = r.secret}, Deadline::after(kStoreTime)));
  STORMO_ASSIGN_OR_RETURN(const std::string address, own_address(r, *store));
  STORMO_ASSIGN_OR_RETURN(const std::unique_ptr<LinkServer> server,
                          LinkServer::start(address, r.ports, r.secret));
  const Deadline by = Deadline::after(kPresentTime);
  STORMO_RETURN_IF_ERROR(
      store->set(launch::arrival_key(r.rank), transport::to_string(server->address()), by));
  STORMO_ASSIGN_OR_RETURN(const std::string text, store->get(launch::kPresentKey, by));
  std::vector<Rank> present;
  for (const std::string_view rank : split(text, ','))
    present.push_back(number_in<Rank>(rank).value_or(-1));
  STORMO_ASSIGN_OR_RETURN(out["links"], measure_links(r, *store, present));
  print_json(out);
  return store->goodbye(Deadline::after(kStoreTime));
}

}  // namespace stormo::cli
