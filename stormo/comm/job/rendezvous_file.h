#pragma once

#include <string>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// The contents of the file that rank 0 writes to a shared file system when another launcher has
/// started the job on several hosts: the Store's address and the job's secret.
struct RendezvousTicket {
  transport::StoreAddress store;
  transport::Secret secret;
};

/// The text of such a file. The caller overwrites it after use: transport::cleanse().
std::string to_text(const RendezvousTicket& ticket);
/// `path` is used in error messages.
Result<RendezvousTicket> parse_ticket(const std::string& path, std::string_view text);

/// Creates the file with mode 0600 under a temporary name and renames it; refuses to replace one.
Status write_rendezvous_file(const std::string& path, const RendezvousTicket& ticket);
/// Waits for the file, at most until `by`. Refuses a file that others may read or that belongs to
/// another user.
Result<RendezvousTicket> read_rendezvous_file(const std::string& path, Deadline by);

}  // namespace stormo::comm
