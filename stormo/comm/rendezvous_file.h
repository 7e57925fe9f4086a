#pragma once

#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/secret.h>
#include <stormo/transport/store.h>

namespace stormo::comm {

/// What rank 0 leaves on a shared file system for jobs that a foreign launcher started on several
/// hosts: where the Store is, and the job's secret.
struct RendezvousTicket {
  transport::StoreAddress store;
  transport::Secret secret;
};

/// Creates the file with mode 0600 under a temporary name and renames it; refuses to replace one.
Status write_rendezvous_file(const std::string& path, const RendezvousTicket& ticket);
/// Waits for the file. Refuses one that others may read or that belongs to another user.
Result<RendezvousTicket> read_rendezvous_file(const std::string& path, Deadline by);

}  // namespace stormo::comm
