#pragma once

#include <functional>
#include <memory>
#include <string>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/job/bulletin.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::comm {

/// How a rank joins others that have a Bulletin in common. It says nothing of hosts: which ranks
/// are on one host is found (docs/adr/0032-worlds-from-a-foreign-store.md).
struct WorldOptions : transport::JobSettings {
  Rank rank = 0;
  int size = 1;
  /// Between hosts, where `interface` is empty: that of this host, if it has one only. Takes a
  /// while. Null: nobody knows.
  std::function<std::string()> find_interface{};
};

/// Forms the world of the ranks 0 .. size-1, each of which calls this with a Bulletin in which the
/// same keys are free. Blocks until all have joined or options.join_timeout has passed; then the
/// message names the rank that is missing. kInvalidArgument when two processes have one number, or
/// the ranks are not numbered host by host; kRefused on several hosts without a rendezvous_file
/// and without trust_store, and when versions differ. `version` is as in join() of a Rendezvous.
/// The Bulletin is not used afterwards.
Result<std::unique_ptr<Communicator>> join(Bulletin& bulletin, const WorldOptions& options,
                                           std::string version = {});

}  // namespace stormo::comm
