#include <cli/bench/servers/rank.h>

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include <bench/statistics.h>
#include <cli/bench/report.h>
#include <cli/bench/servers/echo.h>
#include <cli/bench/servers/shards.h>
#include <cli/bench/servers/turns.h>
#include <cli/engine.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

/// Turns of all workers per second, in each round: with the pull copied, with the pull in place,
/// of memcpy, and with a server behind a socket.
struct ServersFigures {
  std::vector<double> copied, in_place, memcpy, loopback;
  bool verified = false;
};

/// An echo server of rank 0, and this rank's connection to it.
struct Loopback {
  std::unique_ptr<EchoServer> server;  // of rank 0; goes last
  std::unique_ptr<EchoClient> client;
};

/// A collective.
Result<Loopback> connect_loopback(comm::Communicator& world, std::uint64_t bytes) {
  Loopback out;
  transport::HostPort address{"127.0.0.1", 0};
  std::int64_t port = 0;
  if (world.rank() == 0) {
    STORMO_ASSIGN_OR_RETURN(out.server, EchoServer::listen(address, bytes));
    STORMO_ASSIGN_OR_RETURN(address, out.server->address());
    port = address.port;
  }
  STORMO_RETURN_IF_ERROR(world.broadcast(std::span(&port, 1), 0));
  address.port = static_cast<std::uint16_t>(port);
  STORMO_ASSIGN_OR_RETURN(out.client, EchoClient::connect({address}, bytes));
  if (out.server) STORMO_RETURN_IF_ERROR(out.server->accept(world.size()));
  return out;
}

Result<ServersFigures> measure_servers(comm::Communicator& world,
                                       const BenchServersOptions& options, std::uint64_t bytes) {
  STORMO_ASSIGN_OR_RETURN(const auto shards, BenchShards::create(world, options.servers, bytes));
  STORMO_ASSIGN_OR_RETURN(const Loopback loopback, connect_loopback(world, bytes));
  const auto push_and_pull = [&]() -> Status {
    for (int key = 0; key < options.servers; ++key) {
      STORMO_RETURN_IF_ERROR(loopback.client->push_and_pull());
    }
    return {};
  };
  ServersFigures figures;
  const auto copy = [&] {
    shards->copy();
    return Status();
  };
  STORMO_RETURN_IF_ERROR(
      measure_turns(world, options,
                    {{figures.copied, [&] { return shards->pull_and_push(true); }},
                     {figures.memcpy, copy},
                     {figures.in_place, [&] { return shards->pull_and_push(false); }},
                     {figures.loopback, push_and_pull}}));
  STORMO_ASSIGN_OR_RETURN(figures.verified, shards->counted_all());
  return figures;
}

std::string figures_json(const ServersFigures& f, const BenchServersOptions& options, int workers,
                         std::uint64_t bytes) {
  const auto keys = static_cast<double>(options.servers);
  nlohmann::ordered_json out = {
      {"op", "servers"}, {"workers", workers},       {"servers", options.servers},
      {"bytes", bytes},  {"rounds", options.rounds}, {"verified", f.verified}};
  const auto add = [&](const char* name, const std::vector<double>& rates) {
    const double rate = bench::median(rates);
    out[name] = {{"keys_per_s", rate * keys},
                 {"bytes_per_s", rate * keys * 2 * static_cast<double>(bytes)}};
    bench::add_spread(out[name], "roofline", bench::ratios(rates, f.memcpy));
    bench::add_spread(out[name], "over_loopback", bench::ratios(rates, f.loopback));
  };
  add("copied", f.copied);
  add("in_place", f.in_place);
  out["loopback_keys_per_s"] = bench::median(f.loopback) * keys;
  out["memcpy_bytes_per_s"] = bench::median(f.memcpy) * keys * 2 * static_cast<double>(bytes);
  return out.dump();
}

std::string columns_of_shards() {
  return fmt::format("{:>10}  {:>10}  {:>8}  {:>9}  {:>6}  {:>6}  {:>10}  {:>9}  {:>11}", "key",
                     "keys/s", "GB/s", "of memcpy", "min", "max", "in place/s", "of memcpy",
                     "of loopback");
}

std::string line(const ServersFigures& f, int servers, std::uint64_t bytes) {
  const double rate = bench::median(f.copied) * servers;
  const bench::Spread copied = bench::ratios(f.copied, f.memcpy);
  const bench::Spread in_place = bench::ratios(f.in_place, f.memcpy);
  return fmt::format(
      "{:>10}  {:>10.4g}  {:>8.3g}  {:>9.3f}  {:>6.3f}  {:>6.3f}  {:>10.4g}  {:>9.3f}  {:>11.2f}{}",
      format_bytes(bytes), rate, rate * 2 * static_cast<double>(bytes) / 1e9, copied.median,
      copied.min, copied.max, bench::median(f.in_place) * servers, in_place.median,
      bench::ratios(f.copied, f.loopback).median, f.verified ? "" : "  WRONG");
}

}  // namespace

Result<bool> run_servers_rank(const transport::Rendezvous& place,
                              const BenchServersOptions& options, bool json) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world("stormo", place));
  const std::string heading =
      json ? ""
           : fmt::format("{} workers, {} server shards, a key on each, plain SGD; {} rounds\n{}",
                         world->size(), options.servers, options.rounds, columns_of_shards());
  const auto measure = [&](std::uint64_t bytes) -> Result<Report> {
    STORMO_ASSIGN_OR_RETURN(const ServersFigures f, measure_servers(*world, options, bytes));
    return Report{
        json ? figures_json(f, options, world->size(), bytes) : line(f, options.servers, bytes),
        f.verified};
  };
  STORMO_ASSIGN_OR_RETURN(const bool right, print_each<std::uint64_t>(world->rank() == 0, heading,
                                                                      options.bytes, measure));
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return right;
}

}  // namespace stormo::cli
