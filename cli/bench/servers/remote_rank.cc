#include <cli/bench/servers/rank.h>

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <bench/statistics.h>
#include <cli/bench/report.h>
#include <cli/bench/servers/remote.h>
#include <cli/bench/servers/turns.h>
#include <cli/engine.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

/// Turns of all workers per second, in each round.
struct RemoteFigures {
  std::vector<double> shards, streams;
  bool verified = false;
};

/// The address by which other hosts reach this one.
Result<std::string> address_of_host(const transport::Rendezvous& place) {
  const Deadline by = Deadline::after(place.join_timeout);
  STORMO_ASSIGN_OR_RETURN(
      const auto store,
      transport::StoreClient::connect({.address = place.store, .secret = place.secret}, by));
  const std::string here = store->local_address();
  STORMO_RETURN_IF_ERROR(store->goodbye(by));
  return here.empty() ? "127.0.0.1" : here;
}

Result<RemoteFigures> measure(comm::Communicator& world, const transport::Rendezvous& place,
                              const std::string& host, const BenchServersOptions& options,
                              std::uint64_t bytes) {
  const RemoteRoles roles{
      .ranks = world.size(), .servers = options.processes, .beside = options.beside};
  STORMO_ASSIGN_OR_RETURN(const auto remote,
                          RemoteShards::create(world, place, host, roles, options.servers, bytes));
  std::function<Status()> push_and_pull, stream;
  if (roles.works(world.rank())) {
    push_and_pull = [&] { return remote->push_and_pull(); };
    stream = [&] { return remote->stream(); };
  }
  RemoteFigures figures;
  STORMO_RETURN_IF_ERROR(
      measure_turns(world, options, {{figures.shards, push_and_pull}, {figures.streams, stream}}));
  STORMO_ASSIGN_OR_RETURN(figures.verified, remote->counted_all());
  STORMO_RETURN_IF_ERROR(remote->finish());
  return figures;
}

/// Bytes that a worker sends in a second, which are as many as it gets.
double bytes_each_way(const std::vector<double>& turns, const BenchServersOptions& options,
                      int workers, std::uint64_t bytes) {
  return bench::median(turns) * options.servers * static_cast<double>(bytes) / workers;
}

std::string figures_json(const RemoteFigures& f, const BenchServersOptions& options, int workers,
                         std::uint64_t bytes) {
  nlohmann::ordered_json out = {
      {"op", "server_processes"},
      {"workers", workers},
      {"servers", options.servers},
      {"processes", options.processes},
      {"beside", options.beside},
      {"bytes", bytes},
      {"rounds", options.rounds},
      {"verified", f.verified},
      {"bytes_per_s_each_way", bytes_each_way(f.shards, options, workers, bytes)},
      {"streams_bytes_per_s_each_way", bytes_each_way(f.streams, options, workers, bytes)}};
  bench::add_spread(out, "over_streams", bench::ratios(f.shards, f.streams));
  return out.dump();
}

std::string columns_of_processes() {
  return fmt::format("{:>10}  {:>14}  {:>12}  {:>12}  {:>10}  {:>6}  {:>6}", "key", "turn",
                     "MB/s, shards", "streams", "of streams", "min", "max");
}

std::string line(const RemoteFigures& f, const BenchServersOptions& options, int workers,
                 std::uint64_t bytes) {
  const bench::Spread s = bench::ratios(f.shards, f.streams);
  return fmt::format("{:>10}  {:>11.2f} ms  {:>12.4g}  {:>12.4g}  {:>10.3f}  {:>6.3f}  {:>6.3f}{}",
                     format_bytes(bytes), 1e3 * workers / bench::median(f.shards),
                     bytes_each_way(f.shards, options, workers, bytes) / 1e6,
                     bytes_each_way(f.streams, options, workers, bytes) / 1e6, s.median, s.min,
                     s.max, f.verified ? "" : "  WRONG");
}

}  // namespace

Result<bool> run_remote_servers_rank(const transport::Rendezvous& place,
                                     const BenchServersOptions& options, bool json) {
  const int workers = options.beside ? place.size : place.size - options.processes;
  if (workers < 1 || options.processes > place.size) {
    return invalid_argument(fmt::format("--processes: {} of {} ranks leave no worker; use more -n",
                                        options.processes, place.size));
  }
  if (place.source != "stormo") {
    return invalid_argument("--processes: give -n or --hosts; other launchers are not supported");
  }
  STORMO_ASSIGN_OR_RETURN(const std::string host, address_of_host(place));
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world("stormo", place));
  const std::string heading =
      json ? ""
           : fmt::format("{} workers, {} server shards on {} processes{}, plain SGD; {} rounds\n{}",
                         workers, options.servers, options.processes,
                         options.beside ? " beside them" : "", options.rounds,
                         columns_of_processes());
  const auto measure_size = [&](std::uint64_t bytes) -> Result<Report> {
    STORMO_ASSIGN_OR_RETURN(const RemoteFigures f, measure(*world, place, host, options, bytes));
    return Report{
        json ? figures_json(f, options, workers, bytes) : line(f, options, workers, bytes),
        f.verified};
  };
  STORMO_ASSIGN_OR_RETURN(const bool right, print_each<std::uint64_t>(world->rank() == 0, heading,
                                                                      options.bytes, measure_size));
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return right;
}

}  // namespace stormo::cli
