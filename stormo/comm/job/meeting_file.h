#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/job/rendezvous_file.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {

/// How the ranks of one host find each other when their launcher hands over no secret: rank 0 holds
/// a file with the Store's address and the job's secret, in a folder that only this user enters.
/// The file counts while rank 0 lives, which a lock on it shows; what a killed job left is replaced
/// by the next one of its name, or removed by any when it had no name yet.
class MeetingFile {
 public:
  /// Finds or makes the folder: the first of `folders` that is this user's alone. kInvalidArgument
  /// when another job holds a file of this name; kRefused, with all reasons, when no folder will
  /// do.
  static Result<std::unique_ptr<MeetingFile>> open(const std::vector<std::string>& folders,
                                                   const std::string& name);
  /// Removes the file.
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  /// Path for the Store's socket, new for every job.
  const std::string& socket_path() const { return socket_path_; }
  Status publish(const RendezvousTicket& ticket);

 private:
  MeetingFile() = default;
  std::string path_;
  std::string socket_path_;
  transport::Descriptor locked_;
};

/// The other ranks' part: waits for a file whose writer lives.
Result<RendezvousTicket> read_meeting_file(const std::vector<std::string>& folders,
                                           const std::string& name, Deadline by);

}  // namespace stormo::comm
