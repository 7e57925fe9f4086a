#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/job/rendezvous_file.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {

/// The rendezvous of the ranks of one host whose launcher passes no secret. Rank 0 has a file with
/// the Store's address and the job's secret, in a folder that only this user can enter. The file is
/// valid while rank 0 holds a lock on it. A file that a killed job has left is replaced by the next
/// job of the same name; an unfinished one is removed by any job.
class HostRendezvous {
 public:
  /// Finds or creates the folder: the first of `folders` that only this user can enter.
  /// kInvalidArgument when another job holds a file of this name; kRefused, with all reasons, when
  /// no folder is suitable.
  static Result<std::unique_ptr<HostRendezvous>> open(const std::vector<std::string>& folders,
                                                      const std::string& name);
  /// Removes the file.
  ~HostRendezvous();
  HostRendezvous(const HostRendezvous&) = delete;
  HostRendezvous& operator=(const HostRendezvous&) = delete;

  /// Path for the Store's socket, new for every job.
  const std::string& socket_path() const { return socket_path_; }
  Status publish(const RendezvousTicket& ticket);

 private:
  HostRendezvous() = default;
  std::string path_;
  std::string socket_path_;
  transport::Descriptor locked_;
};

/// For the other ranks: waits until there is a valid file, at most until `by`.
Result<RendezvousTicket> read_host_rendezvous(const std::vector<std::string>& folders,
                                              const std::string& name, Deadline by);

}  // namespace stormo::comm
