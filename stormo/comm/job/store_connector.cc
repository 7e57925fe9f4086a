#include <stormo/comm/job/store_connector.h>

#include <fmt/format.h>

#include <stormo/comm/job/refusal_lines.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::comm {

StoreConnector::StoreConnector(std::shared_ptr<JobWatch> job_watch,
                               transport::Rendezvous rendezvous, transport::Arena& arena,
                               std::shared_ptr<transport::Health> health)
    : job_watch_(std::move(job_watch)),
      rendezvous_(std::move(rendezvous)),
      arena_(arena),
      health_(std::move(health)) {}

Result<Connections> StoreConnector::connect(const Membership& m, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(HostDoor door, find_door(m, by));
  const bool is_posted = door.listener != nullptr;
  STORMO_ASSIGN_OR_RETURN(Connections made, connect(m, std::move(door), by));
  // all have entered, so nobody will read it any more
  if (is_posted) STORMO_RETURN_IF_ERROR(store().erase(door_key(m), by));
  return made;
}

Result<Connections> StoreConnector::connect(const Membership& m, HostDoor door, Deadline by) {
  Connections made;
  STORMO_ASSIGN_OR_RETURN(transport::HostParts host, join_on_host(m, door, by));
  host.on_stopped = rendezvous_.on_stopped;
  made.host_group = std::make_unique<transport::HostGroup>(std::move(host), health_);
  if (m.ranks_per_host.size() > 1) {
    STORMO_ASSIGN_OR_RETURN(transport::TcpConnections tcp, reach_hosts(m, by));
    made.network = std::move(tcp.transport);
    made.lines = {std::move(tcp.others), rendezvous_.checksum, rendezvous_.heartbeat_timeout};
  }
  return made;
}

std::string StoreConnector::door_key(const Membership& m) {
  return fmt::format("{}/listener/{}", m.name, m.cross_rank);
}

Result<StoreConnector::HostDoor> StoreConnector::find_door(const Membership& m, Deadline by) {
  HostDoor door;
  if (m.local_size() == 1) return door;
  if (m.local_rank == 0) {
    STORMO_ASSIGN_OR_RETURN(door.listener, transport::HostListener::open());
    STORMO_RETURN_IF_ERROR(store().set(door_key(m), door.listener->ticket(), by));
  } else {
    STORMO_ASSIGN_OR_RETURN(door.ticket, read(door_key(m), by));
  }
  return door;
}

Result<transport::HostParts> StoreConnector::join_on_host(const Membership& m, const HostDoor& door,
                                                          Deadline by) {
  if (m.local_size() == 1) return transport::lone_host(arena_);
  if (door.listener) return door.listener->host(m.local_size(), arena_, by, health_.get());
  return transport::join_host(door.ticket, m.local_rank, m.local_size(), arena_, by, health_.get());
}

/// What another member sets.
Result<std::string> StoreConnector::read(const std::string& key, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(auto value,
                          value_of(store(), key, by, [this] { return health_->status(); }));
  if (value) return *std::move(value);
  return Status(Code::kDeadlineExceeded, fmt::format("nobody has set '{}' in the Store", key));
}

Result<transport::TcpConnections> StoreConnector::reach_hosts(const Membership& m, Deadline by) {
  std::string address = store().local_address();
  if (!rendezvous_.interface.empty()) {
    STORMO_ASSIGN_OR_RETURN(address, transport::interface_address(rendezvous_.interface));
  }
  const auto key = [&](Rank r) { return fmt::format("{}/data/{}", m.name, r); };
  STORMO_ASSIGN_OR_RETURN(auto listener,
                          transport::TcpListener::listen(address, rendezvous_.ports));
  STORMO_RETURN_IF_ERROR(store().set(key(m.rank), listener->address(), by));
  transport::TcpOptions options{.rank = m.rank,
                                .size = m.size(),
                                .peers = {},
                                .secret = rendezvous_.secret,
                                .epoch = rendezvous_.epoch,
                                .health = health_,
                                .sockets = rendezvous_.sockets,
                                .checksum = rendezvous_.checksum,
                                .silence = rendezvous_.heartbeat_timeout,
                                .on_refused = say_refusals("data port")};
  const Rank first_here = m.rank - m.local_rank;
  for (Rank r = 0; r < m.size(); ++r) {
    if (r >= first_here && r < first_here + m.local_size()) continue;
    STORMO_ASSIGN_OR_RETURN(std::string peer, read(key(r), by));
    options.peers.push_back({r, std::move(peer)});
  }
  auto made = transport::connect_tcp(std::move(options), std::move(listener), by);
  // the others answer only when they have read the addresses of all
  if (made.ok()) STORMO_RETURN_IF_ERROR(store().erase(key(m.rank), by));
  return made;
}

}  // namespace stormo::comm
