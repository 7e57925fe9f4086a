#include <stormo/comm/job/join_by_bulletin.h>

#include <fmt/format.h>

#include <utility>

#include <stormo/comm/job/find_hosts.h>
#include <stormo/comm/job/joining.h>

namespace stormo::comm {
namespace {

void place(transport::Rendezvous& r, const std::vector<int>& ranks_per_host) {
  r.cross_size = static_cast<int>(ranks_per_host.size());
  r.local_rank = r.rank;
  while (r.local_rank >= ranks_per_host[static_cast<std::size_t>(r.cross_rank)]) {
    r.local_rank -= ranks_per_host[static_cast<std::size_t>(r.cross_rank)];
    ++r.cross_rank;
  }
  r.local_size = ranks_per_host[static_cast<std::size_t>(r.cross_rank)];
}

/// How this rank takes the secret is its own option, whatever the others say.
Result<std::unique_ptr<TicketExchange>> exchange_for(Bulletin& bulletin, Hosts& hosts,
                                                     transport::Rendezvous& r) {
  if (hosts.ranks_per_host.size() == 1) return exchange_over(std::move(hosts.connections));
  if (!r.rendezvous_file.empty()) {
    r.rendezvous_file += "." + hosts.id;
    return exchange_of(r);
  }
  if (r.trust_store) return exchange_in(bulletin);
  return Status(Code::kRefused, "this rank takes no secret from a store that it does not trust");
}

}  // namespace

Result<std::unique_ptr<Communicator>> join(Bulletin& bulletin, const WorldOptions& options,
                                           std::string version) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return invalid_argument(
        fmt::format("rank {} of {}: it must be one of 0 to size-1", options.rank, options.size));
  }
  const Deadline by = Deadline::after(options.join_timeout);
  transport::Rendezvous r;
  static_cast<transport::JobSettings&>(r) = options;
  r.rank = options.rank;
  r.size = options.size;
  if (r.size == 1) return join_through(nullptr, r, by, std::move(version));
  auto hosts = find_hosts(bulletin, options, by);
  if (!hosts.ok()) {
    return hosts.status().within(fmt::format("rank {} ({}) joining", options.rank, options.host));
  }
  place(r, hosts->ranks_per_host);
  r.serve_store = r.rank == 0;
  const bool several = hosts->ranks_per_host.size() > 1;
  if (several && r.interface.empty() && options.find_interface) {
    r.interface = options.find_interface();
  }
  STORMO_ASSIGN_OR_RETURN(auto tickets, exchange_for(bulletin, *hosts, r));
  return join_through(std::move(tickets), r, by, std::move(version));
}

}  // namespace stormo::comm
