#pragma once

#include <memory>
#include <string>

#include <stormo/comm/operation/connector.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/shm/host_exchange.h>
#include <stormo/transport/store/rendezvous.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::comm {

/// Connects members that are processes, through the job's Store: ranks of one host pass each other
/// their memory files; ranks of different hosts listen on ports and post their addresses.
class StoreConnector final : public Connector {
 public:
  /// `rendezvous` says which interface, ports and secret to use.
  StoreConnector(std::shared_ptr<JobWatch> job_watch, transport::Rendezvous rendezvous,
                 transport::Arena& arena, std::shared_ptr<transport::Health> health);
  Result<Connections> connect(const Membership& membership, Deadline by) override;
  /// Where the members of one host meet.
  struct HostDoor {
    std::unique_ptr<transport::HostListener> listener;  ///< of the first of them
    std::string ticket;                                 ///< for the others
  };
  /// The same for members that have agreed on it: nothing of it goes through the Store.
  Result<Connections> connect(const Membership& membership, HostDoor door, Deadline by);
  transport::KeyValues& values() override { return store(); }

 private:
  Result<HostDoor> find_door(const Membership& m, Deadline by);
  Result<transport::HostParts> join_on_host(const Membership& m, const HostDoor& door, Deadline by);
  static std::string door_key(const Membership& m);
  Result<transport::TcpConnections> reach_hosts(const Membership& m, Deadline by);
  Result<std::string> read(const std::string& key, Deadline by);
  transport::StoreClient& store() { return job_watch_->store(); }

  std::shared_ptr<JobWatch> job_watch_;
  const transport::Rendezvous rendezvous_;
  transport::Arena& arena_;
  std::shared_ptr<transport::Health> health_;
};

}  // namespace stormo::comm
