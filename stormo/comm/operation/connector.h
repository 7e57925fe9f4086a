#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/shm/host_group.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// Who belongs to a group, as one of its members sees it. Members are numbered host by host.
struct Membership {
  std::string name;  ///< no other group of the job has it
  Rank rank = 0;
  std::vector<int> ranks_per_host;
  int cross_rank = 0;
  int local_rank = 0;

  int size() const { return std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0); }
  int local_size() const { return ranks_per_host[static_cast<std::size_t>(cross_rank)]; }
};

/// How a group's members reach each other.
struct Connections {
  std::unique_ptr<transport::HostGroup> host_group;
  std::unique_ptr<transport::Transport> local;  ///< messages in this host; null if alone on it
  std::unique_ptr<transport::Transport> wire;   ///< messages to other hosts; null on one host
};

/// Makes the connections of a group. Every member calls connect() with the same name and members;
/// it blocks until they have all met, or `by`.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Result<Connections> connect(const Membership& membership, Deadline by) = 0;
};

}  // namespace stormo::comm
