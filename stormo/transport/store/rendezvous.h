#pragma once

#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// How one process finds its job. launch/ fills it from whatever started the process (our own
/// launcher, torchrun, srun, mpirun, or nothing: a world of one); comm/ joins with it.
struct Rendezvous {
  std::string source = "none";  ///< which detector matched: "stormo", "torchrun", "slurm", ...
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;  ///< position among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  ///< index of this host: the host's identity, given, never guessed
  int cross_size = 1;
  std::string host;          ///< display name of this host
  StoreAddress store;        ///< empty only when size == 1
  bool serve_store = false;  ///< this process hosts the Store (rank 0 under a foreign launcher)
  /// Rank 0 publishes address and secret in this 0600 file, the others read it; empty: not used.
  std::string rendezvous_file;
  /// The same on one host, where nobody has to name a file: it has this name, in the first of these
  /// folders that is this user's alone or can be made so. Empty: not used.
  std::string meeting_name;
  std::vector<std::string> meeting_folders;
  Secret secret;          ///< empty where a file brings it; else needed as soon as size > 1
  std::string interface;  ///< network interface for data between hosts; empty: the one that
                          ///< reaches the Store
  PortRange ports;
  int sockets = 1;             ///< tcp connections to each rank of another host
  std::string selection_file;  ///< which algorithms run, read by rank 0; empty: the shipped choice
  Duration join_timeout = std::chrono::seconds(60);
  /// A rank that stays silent for this long is dead or frozen; zero: never judged.
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  /// Who waits in an operation for ranks that do nothing says so after `stall_warning`, and ends
  /// the job `stall_timeout` beyond the slowest step; zero: never (protocol/stall.h).
  Duration stall_warning = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(60);
  /// For the last operations of all ranks when a stall ends the job; empty: stormo-flight.json.
  std::string flight_file;
  /// Whether payloads between hosts carry a checksum (XXH3); what rank 0 says counts for all.
  bool checksum = false;
  /// Which of the groups that the job forms one after the other. After a failure those that are
  /// left may join once more: with the next epoch, numbered anew, on a Store that outlived them.
  /// Whoever still speaks of an earlier epoch is refused.
  Epoch epoch = 0;
};

}  // namespace stormo::transport
