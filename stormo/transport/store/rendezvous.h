#pragma once

#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// What a person may set for a job, whoever starts its ranks. launch/ fills it from the
/// environment.
struct JobSettings {
  std::string host;  ///< display name of this host
  /// Rank 0 writes address and secret into this 0600 file, and the others read it; empty: not used.
  std::string rendezvous_file;
  /// For ranks of several hosts that meet in a store of another program, which authenticates
  /// nobody: the job's secret may be in it. Who can read that store can then take part in the job.
  bool trust_store = false;
  /// Where ranks of one host meet that no launcher has brought together: the first of these folders
  /// that only this user can enter or that can be created so.
  std::vector<std::string> host_rendezvous_folders;
  std::string interface;  ///< network interface for data between hosts; empty: the one that
                          ///< reaches the Store
  PortRange ports;
  int sockets = 1;  ///< tcp connections to each rank of another host
  std::string
      selection_file;  ///< rules for choosing algorithms, read by rank 0; empty: the built-in ones
  Duration join_timeout = std::chrono::seconds(60);
  /// A rank without a heartbeat for this time counts as dead or frozen; zero: off.
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  OnStopped on_stopped = OnStopped::kEnd;  ///< kWait: also a rank that says nothing is waited for
  /// A rank that waits in an operation for missing ranks prints a warning after `stall_warning`,
  /// and ends the job after `stall_timeout` plus the slowest step; zero: never (protocol/stall.h).
  Duration stall_warning = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(60);
  /// File for the last operations of all ranks, written when a stall ends the job; empty:
  /// stormo-flight.json.
  std::string flight_file;
  /// Whether payloads between hosts have a checksum (XXH3); rank 0's value is used by all ranks.
  bool checksum = false;
};

/// How one process finds its job. launch/ fills it from the environment of the launcher (Stormo's
/// own, torchrun, srun, mpirun, or none: a world of one rank); comm/ uses it to join.
struct Rendezvous : JobSettings {
  std::string source = "none";  ///< which detector matched: "stormo", "torchrun", "slurm", ...
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;  ///< position among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  ///< index of this host; it identifies the host and comes from the launcher
  int cross_size = 1;
  StoreAddress store;        ///< empty only when size == 1
  bool serve_store = false;  ///< this process serves the Store (rank 0 under another launcher)
  /// For a single host, instead of a rendezvous_file: the file has this name, in the first of
  /// host_rendezvous_folders that suits. Empty: not used.
  std::string host_rendezvous_name;
  Secret secret;  ///< empty if it comes from a file; else needed if size > 1
  /// The number of the group that the job forms. After a failure the remaining ranks may join
  /// again: with the next epoch and new rank numbers, on a Store that is still running. Connections
  /// of an earlier epoch are refused.
  Epoch epoch = 0;
};

}  // namespace stormo::transport
