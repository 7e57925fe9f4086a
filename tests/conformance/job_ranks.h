#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <stormo/comm/watch/job_watch.h>

#include "tests/unit/comm/ranks.h"

/// Ranks as threads with all that a job of several hosts has: shared memory inside each "host", tcp
/// between them, and a Store through which they learn of each other's failures.
namespace stormo::comm {

struct JobOptions {
  transport::TcpFabricOptions tcp;
  /// Stands between a rank and its wire; null: nothing does.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> wrap;
};

inline std::vector<std::unique_ptr<Communicator>> make_job(const std::vector<int>& hosts,
                                                           JobOptions options = {}) {
  const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
  auto server = transport::StoreServer::start({});
  EXPECT_TRUE(server.ok()) << server.status().to_string();
  std::vector<transport::InprocRank> ranks;
  for (const int here : hosts) {
    auto made = transport::make_inproc_fabric(here, nullptr, kTestArenaBytes);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    for (transport::InprocRank& r : *made) ranks.push_back(std::move(r));
  }
  for (const auto& r : ranks) options.tcp.health.push_back(r.health);
  std::vector<transport::TcpConnections> wires(static_cast<std::size_t>(n));
  if (hosts.size() > 1) wires = transport::connect_tcp_fabric(n, "127.0.0.1", options.tcp);
  const HostMap places = HostMap::of(hosts);
  const Deadline soon = Deadline::after(std::chrono::seconds(20));
  std::vector<std::unique_ptr<Communicator>> group;
  for (Rank r = 0; r < n; ++r) {
    const auto i = static_cast<std::size_t>(r);
    Group::Parts parts;
    parts.rank = r;
    parts.ranks_per_host = hosts;
    parts.host = "host" + std::to_string(places.host[i]);
    parts.health = ranks[i].health;
    parts.activities = std::make_shared<Activities>();
    auto client =
        transport::StoreClient::connect({.address = (*server)->address(), .secret = {}}, soon);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    auto job_watch =
        JobWatch::start(std::move(*client), parts.health,
                        {.rank = r,
                         .size = n,
                         .identity = "rank " + std::to_string(r) + " (host " + parts.host + ")",
                         .activities = parts.activities},
                        soon);
    EXPECT_TRUE(job_watch.ok()) << job_watch.status().to_string();
    parts.job_watch = std::move(*job_watch);
    parts.connections.host_group = std::move(ranks[i].group);
    parts.connections.network = std::move(wires[i].transport);
    parts.connections.lines.sockets = std::move(wires[i].others);
    parts.connections.lines.checksum = options.tcp.checksum;
    if (options.wrap && parts.connections.network) {
      parts.connections.network = options.wrap(std::move(parts.connections.network));
    }
    if (r == n - 1) parts.server = std::move(*server);  // the last one to be destroyed
    group.push_back(std::make_unique<Group>(std::move(parts)));
  }
  return group;
}

}  // namespace stormo::comm
