#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/shm/host_group.h>
#include <stormo/transport/store/key_values.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// The members of a group, as seen by one of them. Members are numbered host by host.
struct Membership {
  std::string name;  ///< unique among the groups of the job
  Rank rank = 0;
  std::vector<int> ranks_per_host;
  int cross_rank = 0;  ///< index of this rank's host
  int local_rank = 0;

  int size() const { return std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0); }
  int local_size() const { return ranks_per_host[static_cast<std::size_t>(cross_rank)]; }
};

/// How messages to other hosts go.
struct MessageLines {
  /// Of each rank of another host, one that is connected, and authenticated by both ends.
  std::map<Rank, transport::Channel> sockets = {};
  bool checksum = false;  ///< the same on all ranks
  /// A peer whose kernel acknowledges nothing for this time is lost; zero: the kernel decides.
  Duration silence{0};
};

/// The connections of one member of a group.
struct Connections {
  std::unique_ptr<transport::HostGroup> host_group;
  std::unique_ptr<transport::Transport> network;  ///< for collectives; null on one host
  MessageLines lines = {};
};

/// Makes the connections of a group. Every member calls connect() with the same name and members;
/// it blocks until all members are connected, at most until `by`. Thread-safe.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Result<Connections> connect(const Membership& membership, Deadline by) = 0;
  /// Where members meet before they connect.
  virtual transport::KeyValues& values() = 0;
};

}  // namespace stormo::comm
